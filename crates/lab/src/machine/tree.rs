//! The guest's file tree, assembled in memory before it is archived.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use super::closure::libraries;
use super::{MachineError, cpio};

/// Top-level links into `/usr`, as on every current Debian system. Both paths of a library work in
/// the guest, whichever the loader or a list of plugins uses.
const MERGED_USR: [&str; 4] = ["bin", "lib", "lib64", "sbin"];

/// Files by their guest path (without leading slash). Sorted, so a folder precedes its content.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tree {
    nodes: BTreeMap<String, Node>,
}

#[derive(Clone, Debug)]
enum Node {
    Directory,
    Text { content: String, permissions: u32 },
    HostFile { path: PathBuf, permissions: u32 },
    Symlink { target: String },
}

impl Tree {
    /// A tree that has only the links of merged `/usr`.
    pub(crate) fn new() -> Self {
        let mut tree = Self::default();
        for name in MERGED_USR {
            tree.directory(&format!("usr/{name}"));
            tree.nodes.insert(
                name.to_owned(),
                Node::Symlink {
                    target: format!("usr/{name}"),
                },
            );
        }
        tree
    }

    pub(crate) fn directory(&mut self, guest_path: &str) {
        self.insert(guest_path, Node::Directory);
    }

    pub(crate) fn text(&mut self, guest_path: &str, content: impl Into<String>) {
        self.insert(
            guest_path,
            Node::Text {
                content: content.into(),
                permissions: 0o644,
            },
        );
    }

    pub(crate) fn executable_text(&mut self, guest_path: &str, content: impl Into<String>) {
        self.insert(
            guest_path,
            Node::Text {
                content: content.into(),
                permissions: 0o755,
            },
        );
    }

    /// The content of the host's file `path`, links followed.
    pub(crate) fn host_file(&mut self, guest_path: &str, path: &Path) {
        self.insert(
            guest_path,
            Node::HostFile {
                path: path.to_owned(),
                permissions: 0o644,
            },
        );
    }

    /// The host's static program `path`.
    pub(crate) fn static_program(&mut self, guest_path: &str, path: &Path) {
        let node = Node::HostFile {
            path: path.to_owned(),
            permissions: 0o755,
        };
        self.insert(guest_path, node);
    }

    /// The host's program `path`, with its shared libraries under their paths on the host.
    pub(crate) fn program(&mut self, guest_path: &str, path: &Path) -> Result<(), MachineError> {
        self.insert(
            guest_path,
            Node::HostFile {
                path: path.to_owned(),
                permissions: 0o755,
            },
        );
        for library in libraries(path)? {
            self.host_library(&library);
        }
        Ok(())
    }

    /// A shared library under its path on the host. The loader asks for it by this name, so a link
    /// keeps its name and gets its target's content.
    pub(crate) fn host_library(&mut self, path: &Path) {
        let node = Node::HostFile {
            path: path.to_owned(),
            permissions: 0o755,
        };
        self.insert(&path.to_string_lossy(), node);
    }

    /// Writes the archive to the file `path`.
    pub(crate) fn write_archive(&self, path: &Path) -> Result<(), MachineError> {
        let file = fs::File::create(path).map_err(MachineError::io("create", path))?;
        let mut writer = cpio::Writer::new(BufWriter::new(file));
        for (name, node) in &self.nodes {
            node.write(name, &mut writer).map_err(|source| {
                let path = node.host_path().unwrap_or(path).to_owned();
                MachineError::Io {
                    action: "archive",
                    path,
                    source,
                }
            })?;
        }
        writer
            .finish()
            .map_err(MachineError::io("write", path))
            .map(drop)
    }

    fn insert(&mut self, guest_path: &str, node: Node) {
        let name = canonical(guest_path);
        for (end, _) in name.match_indices('/') {
            self.nodes
                .entry(name[..end].to_owned())
                .or_insert(Node::Directory);
        }
        self.nodes.insert(name, node);
    }
}

impl Node {
    fn host_path(&self) -> Option<&Path> {
        match self {
            Self::HostFile { path, .. } => Some(path),
            _ => None,
        }
    }

    fn write(&self, name: &str, writer: &mut cpio::Writer<impl Write>) -> io::Result<()> {
        match self {
            Self::Directory => writer.directory(name),
            Self::Text {
                content,
                permissions,
            } => writer.file(name, *permissions, content.as_bytes()),
            Self::HostFile { path, permissions } => {
                writer.file(name, *permissions, &fs::read(path)?)
            }
            Self::Symlink { target } => writer.symlink(name, target),
        }
    }
}

/// The canonical form of a guest path: no leading slash, through `/usr`.
fn canonical(guest_path: &str) -> String {
    let path = guest_path.trim_start_matches('/');
    let top = path.split('/').next().unwrap_or_default();
    if MERGED_USR.contains(&top) {
        format!("usr/{path}")
    } else {
        path.to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_are_made_and_come_before_their_content() {
        let mut tree = Tree::default();
        tree.text("/a/b-c/file", "x");
        tree.text("/a/b/file", "x");
        let names: Vec<_> = tree.nodes.keys().map(String::as_str).collect();
        assert_eq!(names, ["a", "a/b", "a/b-c", "a/b-c/file", "a/b/file"]);
    }

    #[test]
    fn both_spellings_of_a_library_path_are_one_file_under_usr() {
        let mut tree = Tree::new();
        tree.host_library(Path::new("/lib/x86_64-linux-gnu/libc.so.6"));
        tree.host_library(Path::new("/usr/lib/x86_64-linux-gnu/libc.so.6"));
        let files = tree
            .nodes
            .values()
            .filter(|node| node.host_path().is_some())
            .count();
        assert_eq!(files, 1);
        assert!(
            tree.nodes
                .contains_key("usr/lib/x86_64-linux-gnu/libc.so.6")
        );
        assert!(matches!(tree.nodes.get("lib"), Some(Node::Symlink { .. })));
    }

    #[test]
    fn a_host_file_that_cannot_be_read_is_named() {
        let mut tree = Tree::new();
        tree.host_file("/etc/x", Path::new("/nonexistent/portolan"));
        let archive =
            std::env::temp_dir().join(format!("portolan-lab-tree-{}", std::process::id()));
        let error = tree.write_archive(&archive).unwrap_err();
        fs::remove_file(&archive).unwrap();
        assert!(
            error.to_string().contains("/nonexistent/portolan"),
            "{error}"
        );
    }
}
