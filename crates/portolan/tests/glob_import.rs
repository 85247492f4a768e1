//! `use portolan::*` hides no name of the standard library's prelude, of its modules, or of the crate tokio.

/// The prelude's names mean the same.
mod prelude {
    use portolan::*;

    pub(crate) fn parse(text: &str) -> Result<Vec<u32>, String> {
        let parts = text.split(',').map(|part| part.parse::<u32>());
        let parsed: Result<Vec<_>, std::num::ParseIntError> = parts.collect();
        parsed.map_err(|error| ToString::to_string(&error))
    }

    /// With one parameter, `Result` is the library's.
    pub(crate) fn options(depth: Option<u32>) -> Result<Options> {
        let depth = depth.ok_or_else(|| Error::invalid(Step::CreateQp, "depth", "one", "none"))?;
        Ok::<_, Error>(Options::default().receive_depth(depth))
    }

    #[derive(Clone, Debug, Default, PartialEq)]
    pub(crate) struct Kept(Box<[u8]>, Option<String>, Vec<u8>);
}

/// Modules of the standard library whose names are all imported, too.
mod globs {
    use std::io::*;
    use std::net::*;

    use portolan::*;

    pub(crate) fn copied(from: &[u8]) -> usize {
        let mut reader = BufReader::new(from);
        let mut into = Cursor::new(Vec::new());
        let count = copy(&mut reader, &mut into).unwrap_or(0);
        let _: (Option<TcpStream>, Option<SocketAddr>, Option<IpAddr>) = (None, None, None);
        let _: (Option<Stream>, Option<Connection>, Option<Buffer>) = (None, None, None);
        usize::try_from(count).unwrap_or(usize::MAX)
    }
}

#[cfg(feature = "tokio")]
mod with_tokio {
    use portolan::*;
    use tokio::io::AsyncReadExt;
    use tokio::sync::mpsc;

    #[tokio::test]
    async fn the_crate_tokio_keeps_its_name() {
        let (sender, mut receiver) = mpsc::channel::<Option<Connection>>(1);
        let task = tokio::spawn(async move { sender.send(None).await.is_ok() });
        tokio::select! {
            got = receiver.recv() => assert!(got.is_some_and(|inner| inner.is_none())),
        }
        assert!(task.await.unwrap());
        let mut byte = [0];
        assert_eq!((&b"a"[..]).read(&mut byte).await.unwrap(), 1);
        let _: Option<tasks::AsyncConnection> = None;
    }
}

#[test]
fn everything_of_the_library_can_be_imported_beside_the_standard_library() {
    assert_eq!(prelude::parse("1,2"), Ok(vec![1, 2]));
    assert!(prelude::parse("x").is_err());
    assert_eq!(
        prelude::options(Some(4)).map(|options| options.receive_depth),
        Ok(4)
    );
    assert!(prelude::options(None).is_err());
    assert_eq!(prelude::Kept::default(), prelude::Kept::default());
    assert_eq!(globs::copied(b"ahoy"), 4);
}
