//! Memory with its registrations, one for each protection domain that it is used with.

use std::any::Any;
use std::mem::ManuallyDrop;
use std::ptr::{NonNull, addr_eq};
use std::sync::Arc;

use portolan_provider::Result;
use portolan_provider::traits::{Mr, Pd};
use portolan_provider::verbs::Access;
use portolan_threads::lock::Mutex;

use super::memory::Registered;
use super::program::Memory;

/// Memory that devices may access. Deregistered before it is freed or returned.
pub(super) struct Backing {
    start: NonNull<u8>,
    length: usize,
    /// Whether devices and the program may write it.
    is_writable: bool,
    /// The registrations, in the order of first use. The library's own memory has its first one elsewhere.
    keys: Mutex<Vec<Key>>,
    owner: ManuallyDrop<Owner>,
}

/// The owner of the bytes.
enum Owner {
    /// The library; registered with this protection domain.
    Library(Registered, Arc<dyn Pd>),
    /// The program.
    Program(Box<dyn Any + Send + Sync>),
}

struct Key {
    pd: Arc<dyn Pd>,
    region: Arc<dyn Mr>,
}

// SAFETY: the bytes are owned, and owners and regions are Send and Sync.
unsafe impl Send for Backing {}
// SAFETY: `Buffer` and `SharedMemory` define shared access to the bytes: see there.
unsafe impl Sync for Backing {}

impl Backing {
    /// The library's memory, registered.
    pub(super) fn new(pd: &Arc<dyn Pd>, length: usize, access: Access) -> Result<Self> {
        let registered = Registered::new(pd, length, access)?;
        Ok(Self {
            start: registered.start(),
            length: registered.len(),
            is_writable: true,
            keys: Mutex::new(Vec::new()),
            owner: ManuallyDrop::new(Owner::Library(registered, pd.clone())),
        })
    }

    /// The program's memory, registered at its first use.
    pub(super) fn of<M: Memory>(memory: M) -> Self {
        let mut keeper = Box::new(memory.into_keeper());
        let place = M::place(&mut keeper);
        Self {
            start: place.cast(),
            length: place.len(),
            is_writable: M::IS_WRITABLE,
            keys: Mutex::new(Vec::new()),
            owner: ManuallyDrop::new(Owner::Program(keeper)),
        }
    }

    pub(super) fn start(&self) -> NonNull<u8> {
        self.start
    }

    pub(super) fn len(&self) -> usize {
        self.length
    }

    /// Whether devices and the program may write it.
    pub(super) fn is_writable(&self) -> bool {
        self.is_writable
    }

    /// Calls `look` with the region in a protection domain. Registers it at the first use.
    pub(super) fn with_region<T>(
        &self,
        pd: &Arc<dyn Pd>,
        access: Access,
        look: impl FnOnce(&dyn Mr) -> T,
    ) -> Result<T> {
        let is_it = |other: &Arc<dyn Pd>| addr_eq(Arc::as_ptr(other), Arc::as_ptr(pd));
        if let Owner::Library(registered, own) = &*self.owner
            && is_it(own)
        {
            return Ok(look(&**registered.region()));
        }
        let mut keys = self.keys.lock();
        if let Some(key) = keys.iter().find(|key| is_it(&key.pd)) {
            return Ok(look(&*key.region));
        }
        let (addr, length) = (self.start.as_ptr() as u64, self.length as u64);
        let access = match self.is_writable {
            true => access,
            false => access & Access::REMOTE_READ,
        };
        // SAFETY: the owner keeps the bytes in place until `drop` or `into_memory` has deregistered them. `Buffer` and
        // `SharedMemory` give the program only the access that the device permits. Read-only memory is registered
        // without write access.
        let region = unsafe { pd.register(addr, length, access)? };
        let looked = look(&*region);
        let pd = pd.clone();
        keys.push(Key { pd, region });
        Ok(looked)
    }

    /// All regions.
    pub(super) fn regions(&self) -> Vec<Arc<dyn Mr>> {
        let own = match &*self.owner {
            Owner::Library(registered, _) => Some(registered.region().clone()),
            Owner::Program(_) => None,
        };
        let keys = self.keys.lock();
        own.into_iter()
            .chain(keys.iter().map(|key| key.region.clone()))
            .collect()
    }

    /// The region that was registered first, if any was.
    pub(super) fn first_region(&self) -> Option<Arc<dyn Mr>> {
        match &*self.owner {
            Owner::Library(registered, _) => Some(registered.region().clone()),
            Owner::Program(_) => Some(self.keys.lock().first()?.region.clone()),
        }
    }

    /// Whether the program may have slices of the memory once peers have no rights to it.
    pub(super) fn is_exclusive(&self) -> bool {
        match &*self.owner {
            Owner::Library(registered, _) => registered.is_exclusive(),
            Owner::Program(_) => true,
        }
    }

    /// Withdraws all rights. Later registrations have only `access`.
    pub(super) fn restrict(&mut self, access: Access) -> Result<()> {
        self.forget_keys()?;
        match &mut *self.owner {
            Owner::Library(registered, pd) => registered.register_again(pd, access),
            Owner::Program(_) => Ok(()),
        }
    }

    /// Returns the program's memory, or the backing itself if the memory is of another type or cannot be
    /// deregistered.
    pub(super) fn into_memory<M: Memory>(mut self) -> std::result::Result<M, Self> {
        let is_it = match &*self.owner {
            Owner::Program(keeper) => keeper.is::<M::Keeper>(),
            Owner::Library(..) => false,
        };
        if !is_it || self.forget_keys().is_err() {
            return Err(self);
        }
        let mut this = ManuallyDrop::new(self);
        // SAFETY: `this` is not dropped, and its owner is not used after this.
        let owner = unsafe { ManuallyDrop::take(&mut this.owner) };
        // SAFETY: as above; the keys are empty.
        drop(unsafe { std::ptr::read(&this.keys) });
        match owner {
            Owner::Program(keeper) => match keeper.downcast::<M::Keeper>() {
                Ok(keeper) => Ok(M::from_keeper(*keeper)),
                Err(_) => unreachable!("its type was looked at"),
            },
            Owner::Library(..) => unreachable!("it was looked at"),
        }
    }

    /// Deregisters everything except the library's own region.
    fn forget_keys(&mut self) -> Result<()> {
        let mut keys = self.keys.lock();
        while let Some(key) = keys.last() {
            key.region.deregister()?;
            keys.pop();
        }
        Ok(())
    }
}

impl Drop for Backing {
    fn drop(&mut self) {
        if self.forget_keys().is_ok() {
            // SAFETY: the owner is not used after this.
            unsafe { ManuallyDrop::drop(&mut self.owner) };
        }
        // Memory that cannot be deregistered may still be written, so leak it.
    }
}
