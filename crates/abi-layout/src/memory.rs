//! Memory that both C and Rust may free: allocated by malloc.

#![allow(unsafe_code, reason = "memory is malloc's")]

/// Copies items to memory from malloc; null if there are none.
///
/// Out of memory ends the process, as for every allocation of the library.
#[must_use]
pub fn malloc_copy<T: Copy>(items: &[T]) -> *mut T {
    if items.is_empty() {
        return std::ptr::null_mut();
    }
    // SAFETY: malloc accepts every size.
    let place = unsafe { libc::malloc(size_of_val(items)) }.cast::<T>();
    if place.is_null() {
        std::alloc::handle_alloc_error(std::alloc::Layout::for_value(items));
    }
    // SAFETY: there is room for the items, and no other code has the memory yet.
    unsafe { std::ptr::copy_nonoverlapping(items.as_ptr(), place, items.len()) };
    place
}

/// A null-terminated list of pointers, in memory from malloc.
#[must_use]
pub fn malloc_list<T>(items: impl IntoIterator<Item = *mut T>) -> *mut *mut T {
    let items: Vec<_> = items
        .into_iter()
        .chain(std::iter::once(std::ptr::null_mut()))
        .collect();
    malloc_copy(&items)
}

/// Frees memory from malloc; null does nothing.
///
/// # Safety
/// The pointer is null or from malloc, and is not used afterwards.
pub unsafe fn free<T>(place: *mut T) {
    // SAFETY: as the caller promises.
    unsafe { libc::free(place.cast()) };
}
