//! The installed libibverbs, loaded when it is first needed.

use std::ffi::{CStr, CString, c_char, c_int, c_uint, c_void};

use portolan_provider::{Cause, Error, Result, Step};

use super::abi::*;

/// The library's name, looked for as the dynamic loader does.
pub(crate) const SONAME: &str = "libibverbs.so.1";
/// A symbol that only a libibverbs of Portolan's own exports: its devices are the software provider's,
/// which the kernel knows nothing of.
const OUR_MARK: &CStr = c"portolan_verbs";

macro_rules! functions {
    ($($field:ident = $symbol:literal, $version:literal: fn($($arg:ty),*) $(-> $result:ty)?;)*) => {
        /// The library's functions, by their names without `ibv_`.
        #[derive(Debug)]
        pub(super) struct Functions {
            $(pub(super) $field: unsafe extern "C" fn($($arg),*) $(-> $result)?,)*
        }

        impl Functions {
            fn find(handle: &Handle) -> Result<Self> {
                Ok(Self {
                    $($field: {
                        let address = handle.function($symbol, $version)?;
                        // SAFETY: the symbol with this version has this type in every libibverbs
                        // (`infiniband/verbs.h`).
                        unsafe {
                            std::mem::transmute::<
                                *mut c_void,
                                unsafe extern "C" fn($($arg),*) $(-> $result)?,
                            >(address)
                        }
                    },)*
                })
            }

            /// Functions of which each ends the process: a test has its own for those that it needs.
            #[cfg(test)]
            pub(super) fn missing() -> Self {
                extern "C" fn missing() {
                    std::process::abort()
                }
                Self {
                    // SAFETY: pointers to functions are alike; this one looks at nothing and never returns.
                    $($field: unsafe {
                        std::mem::transmute::<
                            extern "C" fn(),
                            unsafe extern "C" fn($($arg),*) $(-> $result)?,
                        >(missing)
                    },)*
                }
            }
        }
    };
}

functions! {
    get_device_list = c"ibv_get_device_list", c"IBVERBS_1.1": fn(*mut c_int) -> *mut *mut Device;
    free_device_list = c"ibv_free_device_list", c"IBVERBS_1.1": fn(*mut *mut Device);
    get_device_name = c"ibv_get_device_name", c"IBVERBS_1.1": fn(*mut Device) -> *const c_char;
    get_device_index = c"ibv_get_device_index", c"IBVERBS_1.9": fn(*mut Device) -> c_int;
    open_device = c"ibv_open_device", c"IBVERBS_1.1": fn(*mut Device) -> *mut Context;
    close_device = c"ibv_close_device", c"IBVERBS_1.1": fn(*mut Context) -> c_int;
    query_device = c"ibv_query_device", c"IBVERBS_1.1": fn(*mut Context, *mut DeviceAttr) -> c_int;
    query_port = c"ibv_query_port", c"IBVERBS_1.1": fn(*mut Context, u8, *mut PortAttr) -> c_int;
    query_gid_table = c"_ibv_query_gid_table", c"IBVERBS_1.11":
        fn(*mut Context, *mut GidEntry, usize, u32, usize) -> isize;
    get_async_event = c"ibv_get_async_event", c"IBVERBS_1.1":
        fn(*mut Context, *mut AsyncEvent) -> c_int;
    ack_async_event = c"ibv_ack_async_event", c"IBVERBS_1.1": fn(*mut AsyncEvent);
    alloc_pd = c"ibv_alloc_pd", c"IBVERBS_1.1": fn(*mut Context) -> *mut Pd;
    dealloc_pd = c"ibv_dealloc_pd", c"IBVERBS_1.1": fn(*mut Pd) -> c_int;
    reg_mr = c"ibv_reg_mr", c"IBVERBS_1.1": fn(*mut Pd, *mut c_void, usize, c_int) -> *mut Mr;
    dereg_mr = c"ibv_dereg_mr", c"IBVERBS_1.1": fn(*mut Mr) -> c_int;
    create_comp_channel = c"ibv_create_comp_channel", c"IBVERBS_1.0":
        fn(*mut Context) -> *mut CompChannel;
    destroy_comp_channel = c"ibv_destroy_comp_channel", c"IBVERBS_1.0":
        fn(*mut CompChannel) -> c_int;
    create_cq = c"ibv_create_cq", c"IBVERBS_1.1":
        fn(*mut Context, c_int, *mut c_void, *mut CompChannel, c_int) -> *mut Cq;
    resize_cq = c"ibv_resize_cq", c"IBVERBS_1.1": fn(*mut Cq, c_int) -> c_int;
    destroy_cq = c"ibv_destroy_cq", c"IBVERBS_1.1": fn(*mut Cq) -> c_int;
    get_cq_event = c"ibv_get_cq_event", c"IBVERBS_1.1":
        fn(*mut CompChannel, *mut *mut Cq, *mut *mut c_void) -> c_int;
    ack_cq_events = c"ibv_ack_cq_events", c"IBVERBS_1.1": fn(*mut Cq, c_uint);
    create_srq = c"ibv_create_srq", c"IBVERBS_1.1": fn(*mut Pd, *mut SrqInitAttr) -> *mut Srq;
    modify_srq = c"ibv_modify_srq", c"IBVERBS_1.1": fn(*mut Srq, *mut SrqAttr, c_int) -> c_int;
    query_srq = c"ibv_query_srq", c"IBVERBS_1.1": fn(*mut Srq, *mut SrqAttr) -> c_int;
    destroy_srq = c"ibv_destroy_srq", c"IBVERBS_1.1": fn(*mut Srq) -> c_int;
    create_qp = c"ibv_create_qp", c"IBVERBS_1.1": fn(*mut Pd, *mut QpInitAttr) -> *mut Qp;
    modify_qp = c"ibv_modify_qp", c"IBVERBS_1.1": fn(*mut Qp, *mut QpAttr, c_int) -> c_int;
    query_qp = c"ibv_query_qp", c"IBVERBS_1.1":
        fn(*mut Qp, *mut QpAttr, c_int, *mut QpInitAttr) -> c_int;
    destroy_qp = c"ibv_destroy_qp", c"IBVERBS_1.1": fn(*mut Qp) -> c_int;
    create_ah = c"ibv_create_ah", c"IBVERBS_1.1": fn(*mut Pd, *mut AhAttr) -> *mut Ah;
    destroy_ah = c"ibv_destroy_ah", c"IBVERBS_1.1": fn(*mut Ah) -> c_int;
    attach_mcast = c"ibv_attach_mcast", c"IBVERBS_1.1": fn(*mut Qp, *const [u64; 2], u16) -> c_int;
    detach_mcast = c"ibv_detach_mcast", c"IBVERBS_1.1": fn(*mut Qp, *const [u64; 2], u16) -> c_int;
}

/// A loaded library. It is never unloaded: its drivers keep state of their own.
struct Handle(*mut c_void);

/// Loads the library and finds its functions.
///
/// # Errors
/// `NoLibrary` with the reason: it is not there, too old, or Portolan's own.
pub(super) fn load(name: &str) -> Result<Functions> {
    let path = CString::new(name).map_err(|_| unusable(name, "its name has a NUL".into()))?;
    // SAFETY: the name is NUL-terminated; the library's initialization is that of every program that
    // is linked to it.
    let handle = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
    if handle.is_null() {
        let why = last_error();
        return Err(unusable(
            name,
            format!("{why}; install rdma-core (libibverbs1)"),
        ));
    }
    let handle = Handle(handle);
    if !handle.symbol(OUR_MARK).is_null() {
        let why = "it is Portolan's own, which has no devices of the kernel's; have the machine's come \
                   first in LD_LIBRARY_PATH";
        return Err(unusable(name, why.into()));
    }
    Functions::find(&handle).map_err(|error| match error.cause {
        Cause::NoSuchObject(symbol) => unusable(
            name,
            format!("it has no {symbol}: rdma-core 33 or newer is needed"),
        ),
        _ => error,
    })
}

impl Handle {
    fn symbol(&self, name: &CStr) -> *mut c_void {
        // SAFETY: an open library and a NUL-terminated name.
        unsafe { libc::dlsym(self.0, name.as_ptr()) }
    }

    fn function(&self, name: &'static CStr, version: &CStr) -> Result<*mut c_void> {
        // SAFETY: as above.
        let found = unsafe { libc::dlvsym(self.0, name.as_ptr(), version.as_ptr()) };
        if found.is_null() {
            let name = name.to_str().unwrap_or("ibv_…");
            return Err(Error::new(Step::OpenDevice, Cause::NoSuchObject(name)));
        }
        Ok(found)
    }
}

/// What the dynamic loader says of its last failure.
fn last_error() -> String {
    // SAFETY: the text is valid until this thread's next call of the loader, and is copied before.
    unsafe {
        let text = libc::dlerror();
        if text.is_null() {
            return "the loader gives no reason".into();
        }
        CStr::from_ptr(text).to_string_lossy().into_owned()
    }
}

fn unusable(name: &str, why: String) -> Error {
    let library = name.into();
    Error::new(Step::OpenDevice, Cause::UnusableLibrary { library, why })
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;
    use std::process::Command;

    use super::*;

    /// A shared library made of C, deleted when dropped.
    struct Made(PathBuf);

    impl Made {
        fn of(name: &str, source: &str) -> Self {
            let folder = std::env::temp_dir();
            let stem = format!("portolan-{name}-{}", std::process::id());
            let (from, to) = (
                folder.join(format!("{stem}.c")),
                folder.join(format!("{stem}.so")),
            );
            std::fs::write(&from, source).unwrap();
            let made = Command::new("cc")
                .args(["-shared", "-fPIC", "-o"])
                .args([&to, &from])
                .status()
                .unwrap();
            std::fs::remove_file(from).unwrap();
            assert!(made.success());
            Self(to)
        }

        fn refusal(&self) -> String {
            load(self.0.to_str().unwrap()).unwrap_err().to_string()
        }
    }

    impl Drop for Made {
        fn drop(&mut self) {
            let _ = std::fs::remove_file(&self.0);
        }
    }

    #[test]
    fn a_library_that_is_not_there_is_named_with_its_package() {
        let error = load("libportolan-none.so.9").unwrap_err();
        assert!(
            matches!(error.cause, Cause::UnusableLibrary { .. }),
            "{error}"
        );
        let text = error.to_string();
        assert!(text.contains("libportolan-none.so.9"), "{text}");
        assert!(text.contains("rdma-core"), "{text}");
    }

    #[test]
    fn a_library_that_lacks_a_symbol_is_told_to_be_too_old() {
        let old = Made::of("old", "int ibv_get_device_list;");
        let text = old.refusal();
        assert!(text.contains("has no ibv_free_device_list"), "{text}");
        assert!(text.contains("33 or newer"), "{text}");
    }

    #[test]
    fn a_library_of_our_own_is_refused() {
        let ours = Made::of("ours", "int portolan_verbs;");
        let text = ours.refusal();
        assert!(text.contains("Portolan's own"), "{text}");
    }
}
