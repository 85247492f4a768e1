//! Hints as C programs write them, with any node and service. They are refused with an error code of the
//! manual, or resolved (with scripted answers) to results that keep the manual's promises.
#![no_main]

use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;
use portolan_addrinfo::lookups::{
    DeviceAnswer, DeviceChoice, DeviceQuestion, LinkLayer, NameQuestion, PathQuestion, SaService,
    ServiceRecord,
};
use portolan_addrinfo::names::{Family as NameFamily, Reason};
use portolan_addrinfo::{
    Eai, Family, Flags, Lookups, NameError, NameResult, PathData, Query, RawHints, Route,
    RouteKind, get_addrinfo_with,
};
use portolan_provider::Cause;
use portolan_provider::address::ip_to_gid;
use portolan_wire::addr::{Gid, PKey};

#[derive(Arbitrary, Debug)]
struct Input<'a> {
    node: Option<&'a str>,
    service: Option<&'a str>,
    flags: i32,
    family: i32,
    qp_type: i32,
    port_space: i32,
    /// Use only known flags, families, types and port spaces.
    plausible: bool,
    src_addr: &'a [u8],
    dst_addr: &'a [u8],
    route: &'a [u8],
    connect: &'a [u8],
    answers: Answers,
}

#[derive(Arbitrary, Debug)]
struct Answers {
    names: Vec<std::net::SocketAddr>,
    name_code: i32,
    canonical_name: bool,
    route: Option<std::net::IpAddr>,
    device: Option<(bool, u32)>,
    paths: Option<u8>,
    records: Option<u8>,
}

impl Lookups for Answers {
    fn names(&self, question: &NameQuestion) -> Result<Vec<NameResult>, NameError> {
        if self.names.is_empty() {
            return Err(NameError {
                node: question.node.clone(),
                service: question.service.clone(),
                reason: Reason::Resolver(Eai::from_code(self.name_code, 5)),
            });
        }
        let result = |addr: &std::net::SocketAddr| NameResult {
            addr: *addr,
            canonical_name: self.canonical_name.then(|| "name.example".into()),
        };
        // As in libc, only addresses of the requested family.
        let fits = |addr: &&std::net::SocketAddr| match question.options.family {
            None => true,
            Some(NameFamily::V4) => addr.is_ipv4(),
            Some(NameFamily::V6) => addr.is_ipv6(),
        };
        let found: Vec<_> = self.names.iter().filter(fits).map(result).collect();
        match found.is_empty() {
            true => Err(NameError {
                node: question.node.clone(),
                service: question.service.clone(),
                reason: Reason::Resolver(Eai::AddrFamily),
            }),
            false => Ok(found),
        }
    }

    fn route(&self, query: &Query) -> Result<Route, Cause> {
        Ok(Route {
            destination: query.destination,
            kind: RouteKind::Unicast,
            source: query
                .source
                .or(self.route)
                .ok_or(Cause::NetworkUnreachable)?,
            interface_index: 7,
            gateway: None,
            mtu: None,
            hop_limit: None,
            table: 254,
        })
    }

    fn device(&self, question: &DeviceQuestion) -> DeviceAnswer {
        let Some((is_infiniband, index)) = self.device else {
            return DeviceAnswer::Unknown;
        };
        let gid = match question {
            DeviceQuestion::OfAddress { ip, .. } => ip_to_gid(*ip),
            DeviceQuestion::Named { .. } | DeviceQuestion::TowardsGid { .. } => Gid([0xFE; 16]),
        };
        DeviceAnswer::Found(DeviceChoice {
            name: "rdma0".into(),
            index,
            port_num: 1,
            gid_index: 0,
            gid,
            link_layer: match is_infiniband {
                true => LinkLayer::InfiniBand,
                false => LinkLayer::Ethernet,
            },
            provider: String::new(),
        })
    }

    fn paths(&self, _: &PathQuestion) -> Result<Vec<PathData>, Cause> {
        let count = self.paths.ok_or(Cause::Unsupported("paths"))?;
        Ok(vec![PathData::default(); count.into()])
    }

    fn service_records(&self, _: &SaService) -> Result<Vec<ServiceRecord>, Cause> {
        let count = self.records.ok_or(Cause::NoSuchObject("port"))?;
        let record = ServiceRecord {
            id: 1,
            gid: Gid([1; 16]),
            pkey: PKey::DEFAULT,
            local_gid: Gid([2; 16]),
        };
        Ok(vec![record; count.into()])
    }
}

fuzz_target!(|input: Input<'_>| {
    let choose = |values: &[i32], number: i32| match input.plausible {
        true => values[number.unsigned_abs() as usize % values.len()],
        false => number,
    };
    let raw = RawHints {
        flags: if input.plausible {
            input.flags & 0x3F
        } else {
            input.flags
        },
        family: choose(&[0, 2, 10, 27], input.family),
        qp_type: choose(&[0, 2, 3, 4, 9, 10], input.qp_type),
        port_space: choose(&[0, 2, 0x106, 0x111, 0x13F], input.port_space),
        src_addr: input.src_addr,
        dst_addr: input.dst_addr,
        route: input.route,
        connect: input.connect,
    };
    let found = raw.read().and_then(|hints| {
        let found = get_addrinfo_with(&input.answers, input.node, input.service, Some(&hints));
        found.map(|found| (hints, found))
    });
    let (hints, found) = match found {
        Ok(found) => found,
        Err(error) => {
            // The manual's codes, each with an errno and a text.
            assert!((-11..=-1).contains(&error.code().code()), "{error}");
            assert!(
                error.errno() > 0 || input.answers.name_code == -11,
                "{error}"
            );
            assert!(!error.to_string().is_empty());
            return;
        }
    };
    assert!(!found.is_empty(), "success has at least one result");
    for result in &found {
        let addresses = [result.src_addr, result.dst_addr];
        assert!(addresses.iter().any(Option::is_some));
        for address in addresses.into_iter().flatten() {
            assert_eq!(Family::of(&address), result.family);
        }
        if hints.flags.contains(Flags::PASSIVE) && !hints.flags.contains(Flags::SA) {
            assert_eq!(result.dst_addr, None);
        }
        if let (true, false, Some(family)) = (
            hints.flags.contains(Flags::FAMILY),
            hints.flags.contains(Flags::SA),
            hints.family,
        ) {
            assert_eq!(result.family, family);
        }
        assert_eq!(result.connect, hints.connect);
        assert_eq!(result.src_addr.is_some(), result.src_canonname.is_some());
        assert!(!result.explain.to_string().is_empty());
    }
});
