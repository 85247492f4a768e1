//! libibverbs, loaded at run time: its functions by name and version, with the types of `infiniband/verbs.h`.

#![allow(
    unsafe_code,
    reason = "functions are looked up by name, with the headers' types"
)]

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::fmt;
use std::io;
use std::ptr::NonNull;

use rustix::io::Errno;

use super::{
    Ah, AhAttr, AsyncEvent, CompChannel, Context, Cq, Device, DeviceAttr, Ece, Gid, GidEntry, Mr,
    Pd, PortAttr, Qp, QpAttr, QpInitAttr, Srq, SrqAttr, SrqInitAttr,
};

/// A loaded library. It is never unloaded, because drivers keep state.
#[derive(Clone, Copy, Debug)]
pub struct Library(NonNull<c_void>);

// SAFETY: the handle is opaque, and the dynamic loader may be called from any thread.
unsafe impl Send for Library {}
// SAFETY: as above.
unsafe impl Sync for Library {}

/// Why a library cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LoadError {
    /// The dynamic loader's message.
    NotLoaded(String),
    /// The process or the machine has no descriptor or memory left. Later, the library may be loaded.
    NoRoom(Errno),
    /// A function that the library lacks. rdma-core has all of them since version 33.
    NoFunction(&'static CStr),
}

impl fmt::Display for LoadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotLoaded(why) => write!(f, "{why}; install rdma-core (libibverbs1)"),
            Self::NoRoom(errno) => write!(f, "it cannot be loaded at this moment: {errno}"),
            Self::NoFunction(name) => {
                let name = name.to_string_lossy();
                write!(f, "it lacks {name}: rdma-core 33 or newer is needed")
            }
        }
    }
}

impl std::error::Error for LoadError {}

impl Library {
    /// The name that programs link libibverbs by.
    pub const IBVERBS: &CStr = c"libibverbs.so.1";

    /// Loads a library with the dynamic loader's search order. A library that is already loaded is reused.
    ///
    /// # Errors
    /// [`LoadError::NotLoaded`], [`LoadError::NoRoom`].
    pub fn load(name: &CStr) -> Result<Self, LoadError> {
        // SAFETY: `name` ends with NUL. The library's initialization is the same as for any program linked to it.
        let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        let handle = NonNull::new(handle).map(Self);
        handle.ok_or_else(|| {
            let why = last_error();
            match lacking(&why) {
                Some(errno) => LoadError::NoRoom(errno),
                None => LoadError::NotLoaded(why),
            }
        })
    }

    /// Whether it exports a symbol, of any version.
    pub fn has(self, name: &CStr) -> bool {
        // SAFETY: `self` is an open library and `name` ends with NUL.
        !unsafe { libc::dlsym(self.0.as_ptr(), name.as_ptr()) }.is_null()
    }

    /// The address of a symbol with this version.
    pub fn symbol(self, name: &CStr, version: &CStr) -> Option<NonNull<c_void>> {
        // SAFETY: `self` is an open library and both texts end with NUL.
        NonNull::new(unsafe { libc::dlvsym(self.0.as_ptr(), name.as_ptr(), version.as_ptr()) })
    }
}

/// The dynamic loader's message about its last failure in this thread.
fn last_error() -> String {
    // SAFETY: the text is valid until this thread's next call of the loader, and is copied before that.
    unsafe {
        let text = libc::dlerror();
        if text.is_null() {
            return "the loader gives no reason".into();
        }
        CStr::from_ptr(text).to_string_lossy().into_owned()
    }
}

/// What the process or the machine lacks, by the loader's message. The loader keeps its errno to itself.
fn lacking(why: &str) -> Option<Errno> {
    [Errno::MFILE, Errno::NFILE, Errno::NOMEM]
        .into_iter()
        .find(|errno| {
            let number = errno.raw_os_error();
            // In the language of the loader's message.
            let text = io::Error::from_raw_os_error(number).to_string();
            let text = text.strip_suffix(&format!(" (os error {number})"));
            text.is_some_and(|text| why.ends_with(text))
        })
}

macro_rules! functions {
    ($($field:ident = $symbol:literal, $version:literal: fn($($arg:ty),*) $(-> $result:ty)?;)*) => {
        /// libibverbs's functions, by their names without `ibv_`.
        #[derive(Clone, Debug)]
        pub struct Verbs {
            $(pub $field: unsafe extern "C" fn($($arg),*) $(-> $result)?,)*
        }

        impl Verbs {
            /// Finds all functions in a library.
            ///
            /// # Errors
            /// [`LoadError::NoFunction`] for the first missing one.
            pub fn find(library: Library) -> Result<Self, LoadError> {
                Ok(Self {
                    $($field: {
                        let address = library.symbol($symbol, $version);
                        let address = address.ok_or(LoadError::NoFunction($symbol))?;
                        // SAFETY: the symbol with this version has this type in every libibverbs
                        // (`infiniband/verbs.h`).
                        unsafe {
                            std::mem::transmute::<
                                NonNull<c_void>,
                                unsafe extern "C" fn($($arg),*) $(-> $result)?,
                            >(address)
                        }
                    },)*
                })
            }

            /// Functions that all abort the process. A test replaces those that it expects to be called.
            #[cfg(feature = "fakes")]
            pub fn aborting() -> Self {
                extern "C" fn abort() {
                    std::process::abort()
                }
                Self {
                    // SAFETY: all function pointers have the same representation. `abort` reads no argument and never
                    // returns.
                    $($field: unsafe {
                        std::mem::transmute::<
                            extern "C" fn(),
                            unsafe extern "C" fn($($arg),*) $(-> $result)?,
                        >(abort)
                    },)*
                }
            }
        }
    };
}

functions! {
    get_device_list = c"ibv_get_device_list", c"IBVERBS_1.1": fn(*mut c_int) -> *mut *mut Device;
    free_device_list = c"ibv_free_device_list", c"IBVERBS_1.1": fn(*mut *mut Device);
    get_device_guid = c"ibv_get_device_guid", c"IBVERBS_1.1": fn(*mut Device) -> u64;
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
    query_ece = c"ibv_query_ece", c"IBVERBS_1.10": fn(*mut Qp, *mut Ece) -> c_int;
    set_ece = c"ibv_set_ece", c"IBVERBS_1.10": fn(*mut Qp, *mut Ece) -> c_int;
    attach_mcast = c"ibv_attach_mcast", c"IBVERBS_1.1": fn(*mut Qp, *const Gid, u16) -> c_int;
    detach_mcast = c"ibv_detach_mcast", c"IBVERBS_1.1": fn(*mut Qp, *const Gid, u16) -> c_int;
}

#[cfg(test)]
mod tests {
    use std::ffi::CString;
    use std::os::unix::ffi::OsStrExt;
    use std::path::PathBuf;
    use std::process::Command;

    use super::*;

    /// A shared library compiled from C, deleted on drop.
    struct Made(PathBuf);

    impl Made {
        fn of(name: &str, source: &str) -> Self {
            let stem = format!("portolan-{name}-{}", std::process::id());
            let stem = std::env::temp_dir().join(stem);
            let (from, to) = (stem.with_extension("c"), stem.with_extension("so"));
            std::fs::write(&from, source).unwrap();
            let mut compiler = Command::new("cc");
            compiler.args(["-shared", "-fPIC", "-o"]).args([&to, &from]);
            let made = compiler.status().unwrap();
            std::fs::remove_file(from).unwrap();
            assert!(made.success());
            Self(to)
        }

        fn load(&self) -> Library {
            let path = CString::new(self.0.as_os_str().as_bytes()).unwrap();
            Library::load(&path).unwrap()
        }
    }

    impl Drop for Made {
        fn drop(&mut self) {
            let _ = std::fs::remove_file(&self.0);
        }
    }

    #[test]
    fn a_missing_library_is_named_with_its_package() {
        let text = Library::load(c"libportolan-none.so.9")
            .unwrap_err()
            .to_string();
        assert!(text.contains("libportolan-none.so.9"), "{text}");
        assert!(text.contains("rdma-core"), "{text}");
    }

    #[test]
    fn a_lack_of_descriptors_or_memory_is_told_from_a_missing_library() {
        let message = "libibverbs.so.1: cannot open shared object file: ";
        for (reason, errno) in [
            ("Too many open files", Some(Errno::MFILE)),
            ("Too many open files in system", Some(Errno::NFILE)),
            ("Cannot allocate memory", Some(Errno::NOMEM)),
            ("No such file or directory", None),
        ] {
            assert_eq!(lacking(&format!("{message}{reason}")), errno, "{reason}");
        }
    }

    #[test]
    fn a_library_that_lacks_a_function_is_too_old() {
        let old = Made::of("old", "int ibv_get_device_list;");
        let library = old.load();
        assert!(library.has(c"ibv_get_device_list"));
        assert!(!library.has(c"ibv_free_device_list"));
        let error = Verbs::find(library).unwrap_err();
        assert_eq!(error, LoadError::NoFunction(c"ibv_free_device_list"));
        assert!(error.to_string().contains("33 or newer"), "{error}");
    }
}
