//! Names that do not resolve: each failure of a name server has its own code, within the deadline.

use std::time::{Duration, Instant};

use portolan::cm::CmId;
use portolan_addrinfo::{Eai, Family, Hints};

use crate::low::channel;
use crate::{on_network, outcome, resolve};

#[test]
fn each_failure_of_a_name_server_has_its_code() {
    on_network(|| {
        for (name, code) in [
            // NXDOMAIN.
            ("missing.lab.test", Eai::NoName),
            // NOERROR without addresses.
            ("empty.lab.test", Eai::NoData),
            // SERVFAIL.
            ("broken.foreign.test", Eai::Again),
            // No server is responsible: REFUSED.
            ("elsewhere.test", Eai::Again),
            // No answer.
            ("silent.foreign.test", Eai::Again),
        ] {
            let error = resolve(name, None).expect_err(name);
            assert_eq!(error.code(), code, "{error}");
            assert!(error.to_string().contains(name), "{error}");
        }
    });
}

#[test]
fn a_name_without_an_address_of_the_family_is_a_specific_error() {
    on_network(|| {
        for (name, family) in [
            ("v4.lab.test", Family::Inet6),
            ("v6.lab.test", Family::Inet),
        ] {
            let error = resolve(name, Some(&Hints::new().family(family))).expect_err(name);
            assert_eq!(error.code(), Eai::AddrFamily, "{error}");
        }
        let none = resolve("empty.lab.test", Some(&Hints::new().family(Family::Inet)));
        assert_eq!(none.expect_err("no address").code(), Eai::NoData);
    });
}

#[test]
fn a_silent_server_is_waited_for_only_until_the_deadline() {
    /// libc would wait 5 seconds (`resolv.conf` of the namespace).
    const LIBCS: Duration = Duration::from_secs(5);
    const OURS: Duration = Duration::from_millis(200);
    on_network(|| {
        let channel = channel();
        let id = CmId::new(&channel).expect("an id");
        let asked = Instant::now();
        id.resolve_addrinfo_within(Some("silent.foreign.test"), None, None, OURS)
            .expect("started");
        let error = outcome(&id, &channel).expect_err("nobody answers");
        let took = asked.elapsed();
        assert_eq!(error.code(), Eai::Again, "{error}");
        assert!(took >= OURS && took < LIBCS - OURS, "{took:?}");
    });
}
