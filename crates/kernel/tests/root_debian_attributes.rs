//! Debian's libibverbs (package libibverbs1) judges what the kernel provider passes to ibv_modify_qp(3): librdmacm
//! passes the kernel's answer to INIT_QP_ATTR through `ibv_copy_qp_attr_from_kern`. InfiniBand is included, of which no
//! test has hardware.

#![allow(unsafe_code, reason = "calls a function of Debian's library")]

use std::ffi::CString;
use std::process::Command;

use portolan_abi_layout::{AhAttr, Library, QpAttr};
use portolan_kernel::raw::{self, Fields, qp_attr};
use portolan_provider::verbs::{QpAttrMask, QpState};
use proptest::prelude::*;

type CopyFromKern = unsafe extern "C" fn(*mut QpAttr, *const u8);

fn debians() -> CopyFromKern {
    let option = "-print-file-name=libibverbs.so.1";
    let output = Command::new("cc").arg(option).output().unwrap();
    let path = String::from_utf8(output.stdout).unwrap();
    assert!(path.starts_with('/'), "libibverbs1 is not installed");
    let library = Library::load(&CString::new(path.trim()).unwrap()).unwrap();
    let copy = library.symbol(c"ibv_copy_qp_attr_from_kern", c"IBVERBS_1.0");
    // SAFETY: the type of `infiniband/marshall.h`; the array is `struct ib_uverbs_qp_attr`.
    unsafe { std::mem::transmute::<*mut std::ffi::c_void, CopyFromKern>(copy.unwrap().as_ptr()) }
}

fn address(attr: &AhAttr) -> impl Eq + std::fmt::Debug {
    let grh = &attr.grh;
    (
        (grh.dgid.raw, grh.flow_label, grh.sgid_index, grh.hop_limit),
        (grh.traffic_class, attr.dlid, attr.sl, attr.src_path_bits),
        (attr.static_rate, attr.is_global, attr.port_num),
    )
}

/// Everything else but the state, which librdmacm itself sets.
fn others(attr: &QpAttr) -> impl Eq + std::fmt::Debug {
    (
        (attr.path_mtu, attr.qkey, attr.rq_psn, attr.sq_psn),
        (attr.dest_qp_num, attr.qp_access_flags),
        (attr.pkey_index, attr.max_rd_atomic, attr.max_dest_rd_atomic),
        (attr.min_rnr_timer, attr.port_num, attr.timeout),
        (attr.retry_cnt, attr.rnr_retry),
    )
}

proptest! {
    #[test]
    fn attributes_of_any_link_reach_the_library_as_librdmacm_would_pass_them(
        bytes in prop::collection::vec(any::<u8>(), raw::QpAttr::SIZE),
        mtu in 1u32..=5,
        rights in 0u32..16,
        psns in prop::array::uniform2(0u32..1 << 24),
        dest_qp_num in 0u32..1 << 24,
        is_infiniband: bool,
        has_grh: bool,
        dlid in 1u16..,
    ) {
        let mut answer = raw::QpAttr::from_bytes(&bytes);
        // RC's attributes of RTR and RTS together.
        answer.qp_attr_mask = (QpAttrMask::STATE
            | QpAttrMask::AV
            | QpAttrMask::PATH_MTU
            | QpAttrMask::RQ_PSN
            | QpAttrMask::SQ_PSN
            | QpAttrMask::DEST_QPN
            | QpAttrMask::ACCESS_FLAGS)
            .bits();
        answer.qp_state = QpState::Rtr as u32;
        answer.path_mtu = mtu;
        answer.qp_access_flags = rights;
        [answer.rq_psn, answer.sq_psn] = psns;
        answer.dest_qp_num = dest_qp_num;
        let route = &mut answer.ah_attr;
        match is_infiniband {
            true => (route.dlid, route.is_global) = (dlid, has_grh.into()),
            // RoCE has no LIDs; the kernel sets neither path bits nor a rate.
            false => {
                (route.dlid, route.is_global) = (0, 1);
                (route.src_path_bits, route.static_rate) = (0, 0);
            }
        }
        let mut judged = QpAttr::zeroed();
        // SAFETY: both structures are valid during the call.
        unsafe { debians()(&mut judged, answer.to_bytes().as_ptr()) };
        let (attr, mask) = qp_attr(&answer, QpState::Rtr).unwrap();
        let ours = QpAttr::from(&attr);
        prop_assert_eq!(mask.bits(), answer.qp_attr_mask);
        prop_assert_eq!(address(&ours.ah_attr), address(&judged.ah_attr));
        prop_assert_eq!(others(&ours), others(&judged));
    }
}
