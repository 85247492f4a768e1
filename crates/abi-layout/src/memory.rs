//! Memory that either side may free: it is malloc's.

#![allow(unsafe_code, reason = "memory is malloc's")]

/// A copy of these items in memory of malloc's; null for none.
///
/// Without memory the process ends, as by every allocation of the library.
#[must_use]
pub fn malloc_copy<T: Copy>(items: &[T]) -> *mut T {
    if items.is_empty() {
        return std::ptr::null_mut();
    }
    // SAFETY: malloc takes every size.
    let place = unsafe { libc::malloc(size_of_val(items)) }.cast::<T>();
    if place.is_null() {
        std::alloc::handle_alloc_error(std::alloc::Layout::for_value(items));
    }
    // SAFETY: there is room for as many items, and no other code has the memory yet.
    unsafe { std::ptr::copy_nonoverlapping(items.as_ptr(), place, items.len()) };
    place
}

/// A list of pointers that a null ends, in memory of malloc's.
#[must_use]
pub fn malloc_list<T>(items: impl IntoIterator<Item = *mut T>) -> *mut *mut T {
    let items: Vec<_> = items
        .into_iter()
        .chain(std::iter::once(std::ptr::null_mut()))
        .collect();
    malloc_copy(&items)
}

/// Frees what malloc gave; null is nothing.
///
/// # Safety
/// It is null or malloc's, and is not used any more.
pub unsafe fn free<T>(place: *mut T) {
    // SAFETY: as the caller promises.
    unsafe { libc::free(place.cast()) };
}
