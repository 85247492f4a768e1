//! RETURN VALUE: each code, with its cause.

use portolan_addrinfo::{Eai, Family, Flags, Hints, QpType, RawHints};
use portolan_wire::addr::PortSpace;

use crate::script::*;

/// The result of any look-up if the resolver fails in this way.
fn code_of(code: Eai) -> (Eai, String) {
    let error = Script::failing(code).resolve(Some("any.example"), Some("1"), &Hints::new());
    let error = error.unwrap_err();
    (error.code(), error.to_string())
}

/// The error for this node, service and hints.
fn refused(node: Option<&str>, service: Option<&str>, hints: &Hints) -> Eai {
    Script::ethernet()
        .resolve(node, service, hints)
        .unwrap_err()
        .code()
}

#[test]
fn eai_addrfamily_says_that_the_host_has_no_address_of_the_family() {
    let hints = Hints::new().family(Family::Inet6);
    assert_eq!(refused(Some(HOST_V4), Some("1"), &hints), Eai::AddrFamily);
    assert_eq!(
        refused(Some("192.0.2.1"), Some("1"), &hints),
        Eai::AddrFamily
    );
    assert_eq!(Eai::AddrFamily.code(), -9);
}

#[test]
fn eai_again_says_that_the_name_server_failed_for_the_moment() {
    let (code, text) = code_of(Eai::Again);
    assert_eq!((code, code.code()), (Eai::Again, -3));
    assert!(
        text.contains("for the moment") && text.contains("EAI_AGAIN"),
        "{text}"
    );
}

#[test]
fn eai_badflags_says_that_flags_do_not_exist_or_exclude_each_other() {
    let raw = RawHints {
        flags: 0x40,
        ..RawHints::default()
    };
    assert_eq!(raw.read().unwrap_err().code(), Eai::BadFlags);
    let unknown = Hints {
        flags: Flags::from_bits_retain(1 << 30),
        ..Hints::new()
    };
    assert_eq!(refused(Some(HOST), None, &unknown), Eai::BadFlags);
    let both = Hints::new().flags(Flags::SA | Flags::DNS);
    assert_eq!(refused(None, Some("1"), &both), Eai::BadFlags);
    assert_eq!(Eai::BadFlags.code(), -1);
}

#[test]
fn eai_fail_says_that_the_name_server_failed_for_good() {
    let (code, text) = code_of(Eai::Fail);
    assert_eq!((code, code.code()), (Eai::Fail, -4));
    assert!(text.contains("resolv.conf"), "{text}");
}

#[test]
fn eai_family_says_that_the_address_family_is_not_supported() {
    for family in [1, 3, 28, -2] {
        let raw = RawHints {
            family,
            flags: Flags::FAMILY.bits() as i32,
            ..RawHints::default()
        };
        assert_eq!(raw.read().unwrap_err().code(), Eai::Family, "{family}");
    }
    assert_eq!(code_of(Eai::Family).0.code(), -6);
}

#[test]
fn eai_memory_says_that_memory_has_run_out() {
    let (code, text) = code_of(Eai::Memory);
    assert_eq!((code, code.code()), (Eai::Memory, -10));
    assert!(text.contains("memory"), "{text}");
}

#[test]
fn eai_nodata_says_that_the_host_has_no_address() {
    let (code, text) = code_of(Eai::NoData);
    assert_eq!((code, code.code()), (Eai::NoData, -5));
    assert!(text.contains("address"), "{text}");
}

#[test]
fn eai_noname_says_that_the_node_is_not_known() {
    let (code, text) = code_of(Eai::NoName);
    assert_eq!((code, code.code()), (Eai::NoName, -2));
    assert!(
        text.contains("any.example") && text.contains("not known"),
        "{text}"
    );
}

#[test]
fn eai_noname_says_that_no_queue_pair_type_has_the_service() {
    for qp_type in [None, Some(QpType::Rc), Some(QpType::Ud)] {
        let hints = Hints {
            qp_type,
            ..Hints::new()
        };
        for node in [None, Some(HOST_V4), Some("192.0.2.1")] {
            let code = refused(node, Some("nobodys"), &hints);
            assert_eq!(code, Eai::NoName, "{node:?} {qp_type:?}");
        }
    }
}

#[test]
fn one_of_node_service_and_hints_is_enough_and_none_is_eai_noname() {
    let script = Script::ethernet();
    let none = Hints::new();
    let given = Hints::new().dst_addr(inet("192.0.2.1:1").unwrap());
    assert!(script.resolve(Some(HOST), None, &none).is_ok());
    assert!(script.resolve(None, Some("1"), &none).is_ok());
    assert!(script.resolve(None, None, &given).is_ok());
    assert_eq!(refused(None, None, &none), Eai::NoName);
}

#[test]
fn eai_service_says_that_another_queue_pair_type_may_have_the_service() {
    let ask = |qp_type| {
        let hints = Hints::new().qp_type(qp_type);
        Script::ethernet().resolve(Some(HOST_V4), Some(SERVICE), &hints)
    };
    let error = ask(QpType::Ud).unwrap_err();
    assert_eq!((error.code(), error.code().code()), (Eai::Service, -8));
    assert_eq!(destinations(&ask(QpType::Rc).unwrap()), ["10.0.0.2:7471"]);
}

#[test]
fn eai_qptype_says_that_the_type_is_not_supported_or_not_in_the_port_space() {
    let raw = RawHints {
        qp_type: 8,
        ..RawHints::default()
    };
    assert_eq!(raw.read().unwrap_err().code(), Eai::QpType);
    let conflict = Hints::new().qp_type(QpType::Ud).port_space(PortSpace::Tcp);
    let error = Script::ethernet()
        .resolve(Some(HOST), None, &conflict)
        .unwrap_err();
    assert_eq!((error.code(), error.code().code()), (Eai::QpType, -7));
    let text = error.to_string();
    assert!(text.contains("UD") && text.contains("EAI_QPTYPE"), "{text}");
}

#[test]
fn eai_system_comes_with_the_errno_of_the_system() {
    const EMFILE: i32 = 24;
    let error = Script::failing(Eai::System(EMFILE))
        .resolve(Some("any.example"), None, &Hints::new())
        .unwrap_err();
    assert_eq!((error.code().code(), error.errno()), (-11, EMFILE));
}

#[test]
fn every_code_has_an_errno_and_a_text_of_its_own() {
    let codes = [
        Eai::AddrFamily,
        Eai::Again,
        Eai::BadFlags,
        Eai::Fail,
        Eai::Family,
        Eai::Memory,
        Eai::NoData,
        Eai::NoName,
        Eai::Service,
        Eai::QpType,
        Eai::System(5),
    ];
    let mut texts: Vec<_> = codes.iter().map(|code| code.text()).collect();
    texts.sort_unstable();
    texts.dedup();
    assert_eq!(texts.len(), codes.len());
    for code in codes {
        // gai_strerror(3) of the C library knows the codes by these numbers.
        assert!((-11..0).contains(&code.code()), "{code}");
        assert_eq!(Eai::from_code(code.code(), 5), code);
        let error = Script::failing(code).resolve(Some("any.example"), None, &Hints::new());
        assert!(error.unwrap_err().errno() > 0, "{code}");
    }
}
