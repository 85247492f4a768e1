//! Queries by record type.

use std::sync::Arc;
use std::time::Duration;

use portolan_wire::sa::{McMemberRecord, NodeRecord, PathRecord, Query, Record, ServiceRecord};

use super::Client;
use crate::engine::{Answer, Failure, Request};

/// Blocking calls, one per kind of query.
///
/// Each takes at most `within` and fails as [`Client::wait`] does. If no record matches, the failure is
/// [`Failure::Status`] with `NoRecords`; if one record was requested and several match, `TooManyRecords`.
impl Client {
    /// One path.
    ///
    /// # Errors
    /// See [`Client::wait`].
    pub fn path(&self, query: &Query<PathRecord>, within: Duration) -> Result<PathRecord, Failure> {
        one(&self.wait(Request::get(query)?, within)?)
    }

    /// All paths that match.
    ///
    /// # Errors
    /// See [`Client::wait`].
    pub fn paths(
        &self,
        query: &Query<PathRecord>,
        within: Duration,
    ) -> Result<Vec<PathRecord>, Failure> {
        self.table(query, within)
    }

    /// One service.
    ///
    /// # Errors
    /// See [`Client::wait`].
    pub fn service(
        &self,
        query: &Query<ServiceRecord>,
        within: Duration,
    ) -> Result<ServiceRecord, Failure> {
        one(&self.wait(Request::get(query)?, within)?)
    }

    /// All services that match.
    ///
    /// # Errors
    /// See [`Client::wait`].
    pub fn services(
        &self,
        query: &Query<ServiceRecord>,
        within: Duration,
    ) -> Result<Vec<ServiceRecord>, Failure> {
        self.table(query, within)
    }

    /// Registers a service once, for the length of its lease. [`register`](Self::register) keeps it
    /// registered.
    ///
    /// # Errors
    /// See [`Client::wait`].
    pub fn set_service(
        &self,
        query: &Query<ServiceRecord>,
        within: Duration,
    ) -> Result<ServiceRecord, Failure> {
        one(&self.wait(Request::set(query)?, within)?)
    }

    /// Withdraws a service.
    ///
    /// # Errors
    /// See [`Client::wait`].
    pub fn delete_service(
        &self,
        query: &Query<ServiceRecord>,
        within: Duration,
    ) -> Result<(), Failure> {
        self.wait(Request::delete(query)?, within).map(|_| ())
    }

    /// One membership, or one group.
    ///
    /// # Errors
    /// See [`Client::wait`].
    pub fn group(
        &self,
        query: &Query<McMemberRecord>,
        within: Duration,
    ) -> Result<McMemberRecord, Failure> {
        one(&self.wait(Request::get(query)?, within)?)
    }

    /// Joins a multicast group and returns its attributes.
    ///
    /// # Errors
    /// See [`Client::wait`].
    pub fn join(
        &self,
        query: &Query<McMemberRecord>,
        within: Duration,
    ) -> Result<McMemberRecord, Failure> {
        one(&self.wait(Request::set(query)?, within)?)
    }

    /// Leaves a multicast group.
    ///
    /// # Errors
    /// See [`Client::wait`].
    pub fn leave(&self, query: &Query<McMemberRecord>, within: Duration) -> Result<(), Failure> {
        self.wait(Request::delete(query)?, within).map(|_| ())
    }

    /// One node.
    ///
    /// # Errors
    /// See [`Client::wait`].
    pub fn node(&self, query: &Query<NodeRecord>, within: Duration) -> Result<NodeRecord, Failure> {
        one(&self.wait(Request::get(query)?, within)?)
    }

    /// All nodes that match.
    ///
    /// # Errors
    /// See [`Client::wait`].
    pub fn nodes(
        &self,
        query: &Query<NodeRecord>,
        within: Duration,
    ) -> Result<Vec<NodeRecord>, Failure> {
        self.table(query, within)
    }

    fn table<R: Record>(&self, query: &Query<R>, within: Duration) -> Result<Vec<R>, Failure> {
        Ok(self.wait(Request::table(query)?, within)?.records())
    }
}

fn one<R: Record>(answer: &Arc<Answer>) -> Result<R, Failure> {
    let first = answer.records().into_iter().next();
    first.ok_or(Failure::Malformed("an answer without the record"))
}
