//! Unpacks a kernel image ahead of boot. The host does in half a second what takes an emulated
//! processor seconds.
//!
//! It uses Linux's boot protocol (Documentation/arch/x86/boot.rst: `setup_sects`, `payload_offset`,
//! `payload_length`) and the ELF note with the kernel's 32-bit entry point
//! (`XEN_ELFNOTE_PHYS32_ENTRY`), where the emulator starts it.

use std::fs;
use std::path::{Path, PathBuf};

use super::MachineError;
use super::command::{command, output};

const SECTOR_BYTES: usize = 512;
/// Offset of the number of setup sectors minus one (one byte).
const SETUP_SECTS: usize = 0x1f1;
const PAYLOAD_OFFSET: usize = 0x248;
const PAYLOAD_LENGTH: usize = 0x24c;
/// The kernel's build appends the unpacked length to the packed data.
const LENGTH_BYTES: usize = 4;
const PACKERS: [Packer; 2] = [
    Packer {
        magic: b"\xfd7zXZ\0",
        extension: ".xz",
        program: "xz",
        arguments: &["--decompress"],
    },
    Packer {
        magic: b"\x28\xb5\x2f\xfd",
        extension: ".zst",
        program: "zstd",
        arguments: &["--decompress", "--quiet", "--rm"],
    },
];
const ELF: &[u8] = b"\x7fELF";
/// Type and owner of the note.
const ENTRY_NOTE: &[u8] = b"\x12\0\0\0Xen\0";

/// A compression format of kernels.
struct Packer {
    /// First bytes of the packed data.
    magic: &'static [u8],
    /// File extension that the program removes when it unpacks.
    extension: &'static str,
    program: &'static str,
    arguments: &'static [&'static str],
}

/// Unpacks the kernel in the bootable `image` to the file `unpacked`. Creates no file if the
/// emulator cannot start the kernel directly.
pub(super) fn unpack(image: &Path, unpacked: &Path) -> Result<(), MachineError> {
    let bytes = fs::read(image).map_err(MachineError::io("read", image))?;
    let Some((payload, packer)) =
        payload(&bytes).and_then(|payload| Some((payload, packer(payload)?)))
    else {
        return Ok(());
    };
    let mut packed = unpacked.as_os_str().to_owned();
    packed.push(packer.extension);
    let packed = PathBuf::from(packed);
    fs::write(&packed, payload).map_err(MachineError::io("write", &packed))?;
    output(command(packer.program).args(packer.arguments).arg(&packed))?;
    let kernel = fs::read(unpacked).map_err(MachineError::io("read", unpacked))?;
    if !starts_by_itself(&kernel) {
        fs::remove_file(unpacked).map_err(MachineError::io("remove", unpacked))?;
    }
    Ok(())
}

/// The packed kernel in a bootable image.
fn payload(image: &[u8]) -> Option<&[u8]> {
    let sectors = usize::from(*image.get(SETUP_SECTS)?) + 1;
    let start = (sectors * SECTOR_BYTES).checked_add(number(image, PAYLOAD_OFFSET)?)?;
    let length = number(image, PAYLOAD_LENGTH)?.checked_sub(LENGTH_BYTES)?;
    image.get(start..start.checked_add(length)?)
}

fn packer(payload: &[u8]) -> Option<&'static Packer> {
    PACKERS
        .iter()
        .find(|packer| payload.starts_with(packer.magic))
}

fn number(image: &[u8], at: usize) -> Option<usize> {
    let bytes = image.get(at..at + 4)?.try_into().ok()?;
    usize::try_from(u32::from_le_bytes(bytes)).ok()
}

fn starts_by_itself(kernel: &[u8]) -> bool {
    let notes = kernel.windows(ENTRY_NOTE.len());
    kernel.starts_with(ELF) && notes.into_iter().any(|note| note == ENTRY_NOTE)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An image of two sectors, with the payload three bytes after them.
    fn image(payload: &[u8]) -> Vec<u8> {
        let mut image = vec![0; 2 * SECTOR_BYTES + 3];
        let payload = [payload, &[0; LENGTH_BYTES]].concat();
        image[SETUP_SECTS] = 1;
        image[PAYLOAD_OFFSET] = 3;
        image[PAYLOAD_LENGTH..][..4]
            .copy_from_slice(&u32::try_from(payload.len()).unwrap().to_le_bytes());
        image.extend(payload);
        image
    }

    #[test]
    fn the_payload_is_at_the_boot_protocols_offset_and_never_outside_the_image() {
        let image = image(b"packed");
        assert_eq!(payload(&image), Some(&b"packed"[..]));
        for length in 0..image.len() - LENGTH_BYTES {
            assert_eq!(payload(&image[..length]), None);
        }
    }

    #[test]
    fn a_kernel_that_is_packed_otherwise_is_left_as_it_is() {
        let folder = std::env::temp_dir().join(format!("portolan-image-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let (bootable, unpacked) = (folder.join("vmlinuz"), folder.join("vmlinux"));
        fs::write(&bootable, image(b"\x1f\x8b packed by gzip")).unwrap();
        unpack(&bootable, &unpacked).unwrap();
        let is_there = unpacked.exists();
        fs::remove_dir_all(&folder).unwrap();
        assert!(!is_there);
    }

    #[test]
    fn only_an_elf_file_with_the_entry_note_starts_by_itself() {
        let kernel = [ELF, b"....", b"\x04\0\0\0\x08\0\0\0", ENTRY_NOTE].concat();
        assert!(starts_by_itself(&kernel));
        assert!(!starts_by_itself(&kernel[..kernel.len() - 1]));
        assert!(!starts_by_itself(&kernel[1..]));
    }
}
