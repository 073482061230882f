//! The wire between the machines: one bridge, and of each machine a link to it that can be cut.
//!
//! Who speaks to a machine from outside, such as its clients and its model provider, does so over its loopback
//! interface, which no fault reaches. So a machine that is cut off keeps its clients.

use std::net::Ipv4Addr;

use crate::namespace::Namespace;

/// Where nothing is: frames sent there are lost, and whoever sends them is not told.
const NOBODY: &str = "02:00:00:00:00:00";

/// Some machines on one wire.
pub struct Network {
    /// Where the bridge is.
    wire: Namespace,
    machines: Vec<Namespace>,
}

impl Network {
    /// So many machines, all of which reach each other.
    pub fn new(machines: usize) -> Self {
        let wire = Namespace::new();
        wire.ip("link add wire type bridge");
        wire.ip("link set wire up");
        let network = Self { wire, machines: (0..machines).map(|_| Namespace::new()).collect() };
        for (machine, namespace) in network.machines.iter().enumerate() {
            network.wire.ip(&format!("link add to{machine} type veth peer name from{machine}"));
            network.wire.ip(&format!("link set from{machine} netns {}", namespace.path()));
            network.wire.ip(&format!("link set to{machine} master wire up"));
            namespace.ip(&format!("address add {}/24 dev from{machine}", Self::address(machine)));
            namespace.ip(&format!("link set from{machine} up"));
        }
        network
    }

    /// How many machines there are.
    pub fn size(&self) -> usize {
        self.machines.len()
    }

    /// Where the others reach a machine.
    pub fn address(machine: usize) -> Ipv4Addr {
        Ipv4Addr::new(10, 77, 0, 1 + u8::try_from(machine).unwrap())
    }

    /// The namespace of a machine.
    pub fn of(&self, machine: usize) -> &Namespace {
        &self.machines[machine]
    }

    /// Takes a machine off the wire.
    pub fn cut_off(&self, machine: usize) {
        self.wire.ip(&format!("link set to{machine} down"));
    }

    /// Puts it back.
    pub fn put_back(&self, machine: usize) {
        self.wire.ip(&format!("link set to{machine} up"));
    }

    /// From now on what a machine sends to another one is lost; the other way it arrives.
    pub fn lose(&self, from: usize, to: usize) {
        let to = Self::address(to);
        self.of(from).ip(&format!("neigh replace {to} lladdr {NOBODY} dev from{from} nud permanent"));
    }

    /// From now on what a machine sends to another one arrives again.
    pub fn find(&self, from: usize, to: usize) {
        let to = Self::address(to);
        self.of(from).ip(&format!("neigh del {to} dev from{from}"));
    }
}
