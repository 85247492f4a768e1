//! Text forms of addresses: accepted text is printed and parsed again with the same result.
#![no_main]

use libfuzzer_sys::fuzz_target;
use portolan_addrinfo::{Endpoint, parse_endpoint};
use portolan_provider::SockaddrIb;
use portolan_provider::address::{Address, IbText};

fuzz_target!(|text: &str| {
    let _ = IbText::parse(text);
    if let Ok(address) = text.parse::<SockaddrIb>() {
        assert_eq!(address.to_string().parse(), Ok(address));
        let bytes = Address::Ib(address).to_sockaddr();
        assert_eq!(Address::from_sockaddr(&bytes), Ok(Address::Ib(address)));
    }
    if let Ok(endpoint) = parse_endpoint(text) {
        assert_eq!(endpoint.to_string().parse::<Endpoint>(), Ok(endpoint));
    }
    if let Ok(address) = Address::from_sockaddr(text.as_bytes()) {
        let again = Address::from_sockaddr(&address.to_sockaddr());
        assert_eq!(again, Ok(address));
    }
});
