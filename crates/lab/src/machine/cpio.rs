//! Writes the archive from which a Linux kernel unpacks its first file system.
//!
//! The format is cpio "newc" (kernel documentation, driver-api/early-userspace/buffer-format):
//! each entry is a header of thirteen 8-digit hexadecimal fields after the magic `070701`, the
//! name with its terminating zero, and the data, name and data padded to four bytes.

use std::io::{self, Write};

/// File type bits of the mode field (inode(7)).
const S_IFDIR: u32 = 0o040_000;
const S_IFREG: u32 = 0o100_000;
const S_IFLNK: u32 = 0o120_000;

/// The name that ends an archive.
const TRAILER: &str = "TRAILER!!!";
const HEADER_BYTES: usize = 110;
const ALIGNMENT_BYTES: usize = 4;

/// Writes entries to `output` in order. A folder must be written before its contents.
#[derive(Debug)]
pub(crate) struct Writer<W> {
    output: W,
    inode: u32,
}

impl<W: Write> Writer<W> {
    pub(crate) fn new(output: W) -> Self {
        Self { output, inode: 0 }
    }

    pub(crate) fn directory(&mut self, name: &str) -> io::Result<()> {
        self.entry(name, S_IFDIR | 0o755, &[])
    }

    /// `permissions` are the nine permission bits.
    pub(crate) fn file(&mut self, name: &str, permissions: u32, data: &[u8]) -> io::Result<()> {
        self.entry(name, S_IFREG | (permissions & 0o777), data)
    }

    pub(crate) fn symlink(&mut self, name: &str, target: &str) -> io::Result<()> {
        self.entry(name, S_IFLNK | 0o777, target.as_bytes())
    }

    /// Writes the trailer and returns the output.
    pub(crate) fn finish(mut self) -> io::Result<W> {
        self.entry(TRAILER, 0, &[])?;
        self.output.flush()?;
        Ok(self.output)
    }

    fn entry(&mut self, name: &str, mode: u32, data: &[u8]) -> io::Result<()> {
        let too_large = |_| io::Error::new(io::ErrorKind::FileTooLarge, name.to_owned());
        let size = u32::try_from(data.len()).map_err(too_large)?;
        let name_size = u32::try_from(name.len() + 1).map_err(too_large)?;
        self.inode += 1;
        let links = if mode & S_IFDIR != 0 { 2 } else { 1 };
        // ino, mode, uid, gid, nlink, mtime, filesize, devmajor, devminor, rdevmajor, rdevminor,
        // namesize, check. Times are 0, so equal trees give equal archives.
        let fields = [
            self.inode, mode, 0, 0, links, 0, size, 0, 0, 0, 0, name_size, 0,
        ];
        self.output.write_all(b"070701")?;
        for field in fields {
            write!(self.output, "{field:08x}")?;
        }
        self.output.write_all(name.as_bytes())?;
        self.output.write_all(&[0])?;
        self.pad(HEADER_BYTES + name.len() + 1)?;
        self.output.write_all(data)?;
        self.pad(data.len())
    }

    fn pad(&mut self, written_bytes: usize) -> io::Result<()> {
        let padding = written_bytes.next_multiple_of(ALIGNMENT_BYTES) - written_bytes;
        self.output.write_all(&[0; ALIGNMENT_BYTES][..padding])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_file_is_a_header_a_name_and_padding() {
        let mut writer = Writer::new(Vec::new());
        writer.file("ab", 0o644, b"").unwrap();
        let expected = "070701\
            00000001000081a40000000000000000000000010000000000000000\
            000000000000000000000000000000000000000300000000ab\0\0\0\0";
        // 110 bytes of header and 3 of name, padded to 116.
        assert_eq!(String::from_utf8(writer.output).unwrap(), expected);
    }

    #[test]
    fn every_entry_starts_on_a_multiple_of_four_bytes() {
        let mut writer = Writer::new(Vec::new());
        writer.directory("d").unwrap();
        for length in 0..9 {
            assert_eq!(writer.output.len() % ALIGNMENT_BYTES, 0);
            writer
                .file(
                    &format!("d/{}", "n".repeat(length + 1)),
                    0o600,
                    &vec![0xa5; length],
                )
                .unwrap();
        }
        writer.symlink("d/s", "n").unwrap();
        assert_eq!(writer.finish().unwrap().len() % ALIGNMENT_BYTES, 0);
    }
}
