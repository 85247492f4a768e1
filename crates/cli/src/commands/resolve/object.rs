//! Results for machines: the fields of `struct rdma_addrinfo` by name.

use anyhow::Result;
use portolan::provider::Address;
use portolan::resolve::{AddrInfo, AddrInfoError, Flags, PathData};
use serde_json::{Value, json};

use super::target::Target;
use crate::output::Output;
use crate::text::hex;

/// Writes the results of a target as one array.
pub(super) fn results(results: &[AddrInfo], explain: bool, output: &mut Output) -> Result<()> {
    let objects = results.iter().map(|result| {
        let mut object = object(result);
        if explain {
            let decisions = result.explain.decisions();
            let decisions = decisions.iter();
            object["explain"] = decisions.map(|decision| decision.to_string()).collect();
        }
        object
    });
    Ok(output.object(&objects.collect())?)
}

/// Writes that a target was not found: an object instead of the array.
pub(super) fn failure(target: &Target, error: &AddrInfoError, output: &mut Output) -> Result<()> {
    Ok(output.object(&json!({
        "node": target.node,
        "service": target.service,
        "error": error.code().name(),
        "code": error.code().code(),
        "errno": error.errno(),
        "text": error.to_string(),
    }))?)
}

fn object(result: &AddrInfo) -> Value {
    let text = |address: Option<Address>| address.map(|address| address.to_string());
    json!({
        "ai_flags": flags(result.flags),
        "ai_family": result.family.to_string(),
        "ai_qp_type": format!("IBV_QPT_{}", result.qp_type),
        "ai_port_space": format!("RDMA_PS_{}", result.port_space.to_string().to_uppercase()),
        "ai_src_len": length(result.src_addr),
        "ai_dst_len": length(result.dst_addr),
        "ai_src_addr": text(result.src_addr),
        "ai_dst_addr": text(result.dst_addr),
        "ai_src_canonname": result.src_canonname,
        "ai_dst_canonname": result.dst_canonname,
        "ai_route_len": result.route.len() * PathData::LEN,
        "ai_route": result.route.iter().map(PathData::to_string).collect::<Vec<_>>(),
        "ai_connect_len": result.connect.len(),
        "ai_connect": hex(&result.connect),
    })
}

/// The names of the flags, as in `rdma_cma.h`.
fn flags(flags: Flags) -> Vec<String> {
    flags
        .iter_names()
        .map(|(name, _)| format!("RAI_{name}"))
        .collect()
}

/// The size of the C structure of an address; 0 for none.
fn length(address: Option<Address>) -> usize {
    const SOCKADDR_IN: usize = 16;
    const SOCKADDR_IN6: usize = 28;
    const SOCKADDR_IB: usize = 48;
    match address {
        None => 0,
        Some(Address::Inet(address)) if address.is_ipv4() => SOCKADDR_IN,
        Some(Address::Inet(_)) => SOCKADDR_IN6,
        Some(Address::Ib(_)) => SOCKADDR_IB,
    }
}
