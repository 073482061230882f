//! Which addresses are public: those that a packet to the internet can have.
//!
//! Source: IANA's registries of special-purpose addresses, IPv4 (RFC 6890 and what came after it) and
//! IPv6; of IPv6, only the global unicast space `2000::/3` is public at all. An address that carries an
//! IPv4 address is judged as that one.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Networks of IPv4 that are not public, each with the length of its prefix.
const SPECIAL: &[(Ipv4Addr, u32)] = &[
    (Ipv4Addr::new(0, 0, 0, 0), 8),       // this network
    (Ipv4Addr::new(10, 0, 0, 0), 8),      // private
    (Ipv4Addr::new(100, 64, 0, 0), 10),   // shared by carriers
    (Ipv4Addr::new(127, 0, 0, 0), 8),     // loopback
    (Ipv4Addr::new(169, 254, 0, 0), 16),  // link-local, and metadata of clouds
    (Ipv4Addr::new(172, 16, 0, 0), 12),   // private
    (Ipv4Addr::new(192, 0, 0, 0), 24),    // protocol assignments
    (Ipv4Addr::new(192, 0, 2, 0), 24),    // documentation
    (Ipv4Addr::new(192, 88, 99, 0), 24),  // 6to4 relays
    (Ipv4Addr::new(192, 168, 0, 0), 16),  // private
    (Ipv4Addr::new(198, 18, 0, 0), 15),   // benchmarks
    (Ipv4Addr::new(198, 51, 100, 0), 24), // documentation
    (Ipv4Addr::new(203, 0, 113, 0), 24),  // documentation
    (Ipv4Addr::new(224, 0, 0, 0), 3),     // multicast, reserved, broadcast
];

/// Networks within `2000::/3` that are not public.
const SPECIAL_V6: &[(Ipv6Addr, u32)] = &[
    (Ipv6Addr::new(0x2001, 0, 0, 0, 0, 0, 0, 0), 23), // protocol assignments, Teredo
    (Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 0), 32), // documentation
    (Ipv6Addr::new(0x3fff, 0, 0, 0, 0, 0, 0, 0), 20), // documentation
];

/// Whether `address` is public.
pub(super) fn is_public(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => is_public_v4(address),
        IpAddr::V6(address) => match carried(address) {
            Some(carried) => is_public_v4(carried),
            None => {
                address.segments()[0] & 0xe000 == 0x2000
                    && !SPECIAL_V6.iter().any(|(network, length)| {
                        let host_bits = 128 - length;
                        address.to_bits() >> host_bits == network.to_bits() >> host_bits
                    })
            }
        },
    }
}

fn is_public_v4(address: Ipv4Addr) -> bool {
    !SPECIAL.iter().any(|(network, length)| {
        let host_bits = 32 - length;
        address.to_bits() >> host_bits == network.to_bits() >> host_bits
    })
}

/// The IPv4 address that a packet to this one ends up at: mapped, translated (RFC 6052) or 6to4.
fn carried(address: Ipv6Addr) -> Option<Ipv4Addr> {
    let [first, second, third, fourth, fifth, sixth, seventh, eighth] = address.segments();
    let joined = |high: u16, low: u16| Ipv4Addr::from_bits(u32::from(high) << 16 | u32::from(low));
    match [first, second, third, fourth, fifth, sixth] {
        [0, 0, 0, 0, 0, 0xffff] | [0x64, 0xff9b, 0, 0, 0, 0] => Some(joined(seventh, eighth)),
        [0x2002, high, low, ..] => Some(joined(high, low)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn what_is_not_on_the_internet_is_not_public() {
        for (address, is) in [
            ("93.184.216.34", true),
            ("8.8.8.8", true),
            ("0.0.0.0", false),
            ("10.1.2.3", false),
            ("100.64.0.1", false),
            ("100.63.255.255", true),
            ("127.0.0.1", false),
            ("127.255.255.254", false),
            ("169.254.169.254", false),
            ("172.15.0.1", true),
            ("172.31.0.1", false),
            ("192.168.0.1", false),
            ("198.19.255.255", false),
            ("224.0.0.1", false),
            ("255.255.255.255", false),
            ("::", false),
            ("::1", false),
            ("::127.0.0.1", false),
            ("::ffff:127.0.0.1", false),
            ("::ffff:8.8.8.8", true),
            ("64:ff9b::10.0.0.1", false),
            ("64:ff9b::8.8.8.8", true),
            ("64:ff9b:1::8.8.8.8", false),
            ("2002:7f00:1::", false),
            ("2002:0808:0808::", true),
            ("2001::1", false),
            ("2001:db8::1", false),
            ("2606:4700:4700::1111", true),
            ("3fff::1", false),
            ("fc00::1", false),
            ("fd12:3456::1", false),
            ("fe80::1", false),
            ("fec0::1", false),
            ("ff02::1", false),
        ] {
            assert_eq!(is_public(address.parse().unwrap()), is, "{address}");
        }
    }

    proptest! {
        /// What the standard library calls private, loopback, link-local or multicast is never public, in
        /// any of the forms of IPv6 that carry it.
        #[test]
        fn nothing_private_is_public(bits in any::<u32>(), index in 0_usize..6) {
            let starts = [0x0a00_0000, 0x7f00_0000, 0xac10_0000, 0xc0a8_0000, 0xa9fe_0000, 0xe000_0000_u32];
            let lengths = [8, 8, 12, 16, 16, 4];
            let address = Ipv4Addr::from_bits(starts[index] | (bits >> lengths[index]));
            prop_assert!(!is_public(address.into()));
            prop_assert!(!is_public(address.to_ipv6_mapped().into()));
            prop_assert!(!is_public(address.to_ipv6_compatible().into()));
        }
    }
}
