//! The arguments of commands about a cluster.

mod running;

use clap::{Args, Subcommand};

pub(crate) use self::running::{Demo, RunningCommand};

/// What can be done with the cluster that several daemons are.
#[derive(Debug, Subcommand)]
pub(crate) enum ClusterCommand {
    #[command(flatten)]
    Running(RunningCommand),
    /// Begin a cluster with the sessions of this home, where no daemon runs
    ///
    /// Makes the streams of the cluster on the servers that gateway.toml names, and puts a copy of the store there as its
    /// base: a daemon of another node whose store is empty takes that when it is started. Refused where there is such
    /// a cluster already. Files that clients have stored are not part of it. What was stopped half-way can be done
    /// again.
    Init,
    /// Let the store of this home go on alone, where no daemon runs
    ///
    /// The store keeps all that it has of the cluster. Afterwards a daemon that is in no cluster takes it, and changes
    /// that it makes are its own. The cluster and its other nodes are left as they are. Before the node can join the
    /// cluster again, its store has to be moved away.
    Leave(Agreed),
    /// Begin a new log of the cluster with the store of this home, where no daemon of the cluster runs
    ///
    /// For a log that is lost or damaged, or that has what should not be there. What is in the log and not in this
    /// store is lost: it says how many records that is, and asks. A store that the log contradicts is refused: it may be
    /// the store that is damaged. The other nodes take the new base when their daemons are started; one that has more
    /// than this store is refused then.
    Rebuild(Rebuild),
    /// Find out whether the store of this home is what the log says, where no daemon runs
    ///
    /// For a disk that is not trusted. Makes the store anew beside it, out of the base of the cluster and the records of
    /// the log up to the last one that this store has, and compares them to the bit; what is made is removed
    /// afterwards. Exit status 1 if they differ: it names the tables, and says what to do. Nothing is changed.
    Verify,
    /// Try a cluster out: three NATS servers and three daemons on this machine, until Ctrl-C
    ///
    /// Needs the program nats-server. Everything is in one folder and on free ports of loopback; it says what is where,
    /// and what to try. Nothing of this home is used.
    Demo(Demo),
}

/// What is agreed to beforehand.
#[derive(Args, Debug)]
pub(crate) struct Agreed {
    /// Do not ask
    #[arg(long)]
    pub(crate) yes: bool,
}

/// `cluster rebuild`
#[derive(Args, Debug)]
pub(crate) struct Rebuild {
    #[command(flatten)]
    pub(crate) agreed: Agreed,
    /// Begin with this store although the log contradicts it
    #[arg(long)]
    pub(crate) force: bool,
}
