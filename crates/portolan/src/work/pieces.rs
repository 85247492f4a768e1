//! The buffers of one work request.

use std::ops::Range;
use std::sync::Arc;

use portolan_provider::traits::Pd;
use portolan_provider::verbs::Sge;
use portolan_provider::{Error, Result, Step};

use super::outcome::Failed;
use crate::sys::Buffer;

/// The buffers of one work request: a single one, or several in order (a gather list).
///
/// It is created from a [`Buffer`], from a vector of them (at most [`Options::gather`](crate::Options::gather)), or
/// from memory that a buffer can consist of:
///
/// ```no_run
/// # use portolan::{Buffer, Connection, Failed};
/// # fn send(connection: &Connection, header: Buffer, body: Buffer) -> Result<(), Failed> {
/// connection.send(b"ahoy".to_vec())?.wait()?;
/// let done = connection.send(vec![header, body])?.wait()?;
/// let (header, body) = (done.buffer, done.more);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Gather(Pieces);

/// The buffers, nearly always one.
#[derive(Debug)]
enum Pieces {
    One(Buffer),
    Many(Vec<Buffer>),
}

/// Their addresses and keys, for the device.
#[derive(Debug)]
pub(super) enum Sges {
    None,
    One([Sge; 1]),
    Many(Vec<Sge>),
}

impl Gather {
    /// The length of all buffers, bytes.
    pub fn len(&self) -> usize {
        match &self.0 {
            Pieces::One(buffer) => buffer.len(),
            // Buffers do not overlap, so the sum fits.
            Pieces::Many(buffers) => buffers.iter().map(|buffer| buffer.len()).sum(),
        }
    }

    /// Whether the length is 0.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Checks that the buffers may be the destination of a request.
    pub(crate) fn check_writable(&self, step: Step) -> Result<()> {
        let is_writable = match &self.0 {
            Pieces::One(buffer) => buffer.is_writable(),
            Pieces::Many(buffers) => buffers.iter().all(Buffer::is_writable),
        };
        let (what, expected) = ("destination", "memory that may be written");
        let found = "bytes that are only read";
        match is_writable {
            true => Ok(()),
            false => Err(Error::invalid(step, what, expected, found)),
        }
    }

    /// The addresses and keys of a range of the bytes, in at most `limit` pieces.
    pub(super) fn sges(&self, pd: &Arc<dyn Pd>, bytes: Range<usize>, limit: usize) -> Result<Sges> {
        match &self.0 {
            _ if bytes.is_empty() => Ok(Sges::None),
            Pieces::One(buffer) => Ok(Sges::One([buffer.sge(pd, bytes.start, bytes.len())?])),
            Pieces::Many(buffers) if buffers.len() > limit => {
                let (what, expected) = ("buffers of a gather list", format!("at most {limit}"));
                let found = buffers.len();
                Err(Error::invalid(Step::PostSend, what, expected, found))
            }
            Pieces::Many(buffers) => {
                let (mut begin, mut sges) = (0, Vec::with_capacity(buffers.len()));
                for buffer in buffers {
                    let end = begin + buffer.len();
                    let (from, to) = (bytes.start.max(begin), bytes.end.min(end));
                    if from < to {
                        sges.push(buffer.sge(pd, from - begin, to - from)?);
                    }
                    begin = end;
                }
                Ok(Sges::Many(sges))
            }
        }
    }

    /// Joins the buffers of several lists, in order.
    pub(super) fn joined(gathers: impl Iterator<Item = Self>) -> Self {
        let mut all = Vec::new();
        for gather in gathers {
            match gather.0 {
                Pieces::One(buffer) => all.push(buffer),
                Pieces::Many(buffers) => all.extend(buffers),
            }
        }
        Self(Pieces::Many(all))
    }

    /// A failure that returns the buffers.
    pub(crate) fn failed(self, error: Error) -> Failed {
        let (buffer, more) = self.split();
        let buffer = Some(buffer);
        Failed {
            error,
            buffer,
            more,
        }
    }

    /// The first one and the others.
    pub(super) fn split(self) -> (Buffer, Box<[Buffer]>) {
        match self.0 {
            Pieces::One(buffer) => (buffer, Box::default()),
            Pieces::Many(buffers) => {
                let mut buffers = buffers.into_iter();
                let first = buffers.next();
                let first = first.unwrap_or_else(|| Buffer::from(Vec::new()));
                (first, buffers.collect())
            }
        }
    }
}

impl From<Vec<Buffer>> for Gather {
    fn from(buffers: Vec<Buffer>) -> Self {
        Self(Pieces::Many(buffers))
    }
}

impl<T: Into<Buffer>> From<T> for Gather {
    fn from(buffer: T) -> Self {
        Self(Pieces::One(buffer.into()))
    }
}

impl Sges {
    pub(super) fn as_slice(&self) -> &[Sge] {
        match self {
            Self::None => &[],
            Self::One(one) => one,
            Self::Many(many) => many,
        }
    }
}
