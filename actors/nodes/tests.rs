//! Nodes that are only mailboxes, and those who have them do something.

use clawmux_core::ids::Ticket;
use clawmux_core::scope::{Scope, Scopes};
use clawmux_core::tools::node::NodeReply;
use tokio::sync::mpsc;

use super::*;

const TIMEOUT: Duration = Duration::from_secs(60);

/// A connection that hands on what it gets.
struct Mailbox(mpsc::UnboundedSender<Deliver>);

impl Actor for Mailbox {
    type Context = Context<Self>;
}

impl Handler<Deliver> for Mailbox {
    type Result = ();

    fn handle(&mut self, deliver: Deliver, _: &mut Self::Context) {
        let _ = self.0.send(deliver);
    }
}

struct Peer {
    client: Client,
    inbox: mpsc::UnboundedReceiver<Deliver>,
    nodes: Addr<Nodes>,
}

impl Peer {
    fn new(nodes: &Addr<Nodes>, connection: u64) -> Self {
        let (sender, inbox) = mpsc::unbounded_channel();
        let to = Mailbox(sender).start().recipient();
        let client = Client {
            connection: ConnectionId(connection),
            to,
            window: Arc::default(),
            arbiter: actix::Arbiter::current(),
        };
        Self { client, inbox, nodes: nodes.clone() }
    }

    /// A node of the admins.
    async fn node(nodes: &Addr<Nodes>, connection: u64, id: &str, name: &str) -> Self {
        let node = Self::new(nodes, connection);
        node.joins(Owner::Admins, id, name, false).await;
        node
    }

    async fn joins(&self, owner: Owner, id: &str, name: &str, is_device: bool) {
        let about = About {
            instance_id: Some(id.into()),
            display_name: Some(name.into()),
            commands: vec!["camera.snap".into(), "system.which".into()],
            ..About::default()
        };
        let device = is_device.then(|| id.into());
        let joins = NodeJoins { client: self.client.clone(), owner, host: "::1".into(), about, device };
        self.nodes.send(joins).await.unwrap();
    }

    fn invoke(&self, principal: Principal, invoke: InvokeNode) {
        let asker = Asker::new(self.client.clone(), Ticket(1));
        self.nodes
            .try_send(Request { command: NodeCommand::Invoke(Box::new(invoke)), principal, asker })
            .unwrap();
    }

    async fn next(&mut self) -> Deliver {
        tokio::time::timeout(TIMEOUT, self.inbox.recv()).await.expect("in time").expect("open")
    }

    async fn invocation(&mut self) -> Arc<Invocation> {
        match self.next().await {
            Deliver::Invoke(invocation) => invocation,
            other => panic!("{other:?}"),
        }
    }

    async fn reply(&mut self) -> Result<Outcome, Error> {
        match self.next().await {
            Deliver::Reply(_, Ok(Reply::Node(NodeReply::Invoked(invoked)))) => Ok(invoked.outcome),
            Deliver::Reply(_, Err(error)) => Err(error),
            other => panic!("{other:?}"),
        }
    }

    async fn results(&self, invocation: &Invocation, outcome: Outcome) -> bool {
        let (connection, invocation) = (self.client.connection, invocation.id.clone());
        self.nodes.send(Resulted { connection, invocation, outcome }).await.unwrap()
    }
}

fn snap(node: &str) -> InvokeNode {
    InvokeNode {
        node: node.into(),
        command: "camera.snap".into(),
        params: Some(r#"{"facing":"front"}"#.into()),
        timeout: INVOKE_TIMEOUT,
        idempotency_key: None,
    }
}

fn user(name: &str) -> Principal {
    Principal::new(name, Scopes::of(&[Scope::Read, Scope::Write]))
}

fn json(text: &str) -> Outcome {
    Ok(Some(text.to_owned()))
}

#[actix::test]
async fn an_invocation_is_answered_once_by_the_node_that_was_told() {
    let nodes = Nodes::default().start();
    let mut phone = Peer::node(&nodes, 1, "phone", "Ada's phone").await;
    let other = Peer::node(&nodes, 2, "other", "Other").await;
    let mut operator = Peer::new(&nodes, 3);
    operator.invoke(Principal::local(), snap("phone"));
    let invocation = phone.invocation().await;
    assert_eq!((&*invocation.node, invocation.command.as_str()), ("phone", "camera.snap"));
    assert_eq!(invocation.params.as_deref(), Some(r#"{"facing":"front"}"#));
    assert!(!other.results(&invocation, json("1")).await, "not its to answer");
    assert!(phone.results(&invocation, json("2")).await);
    assert!(!phone.results(&invocation, json("3")).await, "too late");
    assert_eq!(operator.reply().await.unwrap(), json("2"));

    let refused = NodeFailure { code: "CAMERA_OFF".into(), message: "covered".into() };
    operator.invoke(Principal::local(), snap("phone"));
    let invocation = phone.invocation().await;
    phone.results(&invocation, Err(refused.clone())).await;
    assert_eq!(operator.reply().await.unwrap(), Err(refused));
}

#[actix::test]
async fn what_can_not_be_done_is_refused_before_the_node_hears_of_it() {
    let nodes = Nodes::default().start();
    let mut phone = Peer::node(&nodes, 1, "phone", "Phone").await;
    let mut asking = Peer::new(&nodes, 3);
    for (principal, invoke, code) in [
        (Principal::local(), snap("nobody"), ErrorCode::Unavailable),
        (user("ada"), snap("phone"), ErrorCode::Unavailable),
        (
            Principal::local(),
            InvokeNode { command: "system.run".into(), ..snap("phone") },
            ErrorCode::InvalidRequest,
        ),
        (
            Principal::local(),
            InvokeNode { params: Some("x".repeat(PARAMS_BYTES_MAX + 1)), ..snap("phone") },
            ErrorCode::TooLarge,
        ),
    ] {
        let shown = format!("{:?} by {}", invoke.command, principal.name);
        asking.invoke(principal, invoke);
        assert_eq!(asking.reply().await.unwrap_err().code, code, "{shown}");
    }
    assert!(nodes.send(ListNodes(user("ada"))).await.unwrap().is_empty(), "another's");
    assert_eq!(nodes.send(ListNodes(Principal::local())).await.unwrap()[0].id, "phone".into());
    // A bounded number is under way.
    for _ in 0..UNDER_WAY_MAX + 1 {
        asking.invoke(Principal::local(), snap("phone"));
    }
    assert_eq!(asking.reply().await.unwrap_err().code, ErrorCode::Unavailable);
    for _ in 0..UNDER_WAY_MAX {
        let invocation = phone.invocation().await;
        phone.results(&invocation, json("{}")).await;
        asking.reply().await.unwrap().unwrap();
    }
    assert!(phone.inbox.try_recv().is_err(), "it heard of no other");
    asking.invoke(Principal::local(), snap("phone"));
    phone.invocation().await;
}

#[actix::test]
async fn silence_and_departure_end_an_invocation() {
    let nodes = Nodes::default().start();
    let mut phone = Peer::node(&nodes, 1, "phone", "Phone").await;
    let mut asking = Peer::new(&nodes, 3);
    asking.invoke(Principal::local(), InvokeNode { timeout: Duration::from_millis(1), ..snap("phone") });
    assert_eq!(asking.reply().await.unwrap().unwrap_err().code, NodeFailure::TIMEOUT);
    let late = phone.invocation().await;
    assert!(!phone.results(&late, json("1")).await, "too late");

    asking.invoke(Principal::local(), snap("phone"));
    phone.invocation().await;
    nodes.send(NodeLeaves { connection: ConnectionId(1) }).await.unwrap();
    assert_eq!(asking.reply().await.unwrap().unwrap_err().code, NodeFailure::NOT_CONNECTED);
    asking.invoke(Principal::local(), snap("phone"));
    assert_eq!(asking.reply().await.unwrap_err().code, ErrorCode::Unavailable, "it is gone");

    // It comes back under another connection before the old one is found closed.
    let mut before = Peer::node(&nodes, 4, "phone", "Phone").await;
    asking.invoke(Principal::local(), snap("phone"));
    before.invocation().await;
    let mut again = Peer::node(&nodes, 5, "phone", "Phone").await;
    assert_eq!(asking.reply().await.unwrap().unwrap_err().code, NodeFailure::NOT_CONNECTED);
    nodes.send(NodeLeaves { connection: ConnectionId(4) }).await.unwrap();
    asking.invoke(Principal::local(), snap("phone"));
    again.invocation().await;
}

#[actix::test]
async fn a_key_is_one_invocation() {
    let nodes = Nodes::default().start();
    let mut phone = Peer::node(&nodes, 1, "phone", "Phone").await;
    let (mut first, mut second) = (Peer::new(&nodes, 3), Peer::new(&nodes, 4));
    let keyed = |key: &str| InvokeNode { idempotency_key: Some(key.into()), ..snap("phone") };
    first.invoke(Principal::local(), keyed("k"));
    second.invoke(Principal::local(), keyed("k"));
    let invocation = phone.invocation().await;
    assert_eq!(invocation.idempotency_key.as_deref(), Some("k"));
    phone.results(&invocation, json("1")).await;
    assert_eq!((first.reply().await.unwrap(), second.reply().await.unwrap()), (json("1"), json("1")));
    second.invoke(Principal::local(), keyed("k"));
    assert_eq!(second.reply().await.unwrap(), json("1"), "as it was");
    assert!(phone.inbox.try_recv().is_err(), "asked once");

    first.invoke(Principal::local(), keyed("large"));
    let invocation = phone.invocation().await;
    phone.results(&invocation, json(&"x".repeat(REMEMBERED_BYTES_MAX + 1))).await;
    first.reply().await.unwrap().unwrap();
    first.invoke(Principal::local(), keyed("large"));
    assert_eq!(first.reply().await.unwrap_err().code, ErrorCode::Conflict, "not done again");
    for n in 0..2 * REMEMBERED_MAX {
        first.invoke(Principal::local(), keyed(&n.to_string()));
        let invocation = phone.invocation().await;
        phone.results(&invocation, json("1")).await;
        first.reply().await.unwrap().unwrap();
    }
    let observed = nodes.send(Observe).await.unwrap();
    assert_eq!(observed.state["keys_remembered"], REMEMBERED_MAX, "{}", observed.state);
}

#[actix::test]
async fn nobody_takes_a_nodes_place_by_saying_its_name() {
    let nodes = Nodes::default();
    let (connected, nodes) = (nodes.connected(), nodes.start());
    let mut phone = Peer::new(&nodes, 1);
    phone.joins(Owner::Admins, "d1", "Phone", true).await;
    let impostor = Peer::new(&nodes, 2);
    impostor.joins(Owner::Admins, "d1", "Phone", false).await;
    impostor.joins(user("eve").owner, "d1", "Phone", false).await;
    let asking = Peer::new(&nodes, 3);
    asking.invoke(Principal::local(), snap("d1"));
    phone.invocation().await;

    // By its name it is granted only while one node goes by that.
    let grant = |text: &str| NodeTool::parse(text).unwrap().unwrap();
    let offered = |grants: Vec<NodeTool>| connected.tools(&grants);
    let by_name = grant("node:Phone/camera.snap");
    let tools = offered(vec![by_name.clone(), grant("node:Phone/system.run"), grant("node:x/camera.snap")]);
    assert_eq!(tools.len(), 1, "what is there and declared: {tools:?}");
    assert_eq!(
        (tools[0].name.as_str(), &tools[0].input_schema["type"]),
        ("node_Phone_camera_snap", &json!("object"))
    );
    let second = Peer::node(&nodes, 4, "d2", "Phone").await;
    assert!(offered(vec![by_name.clone()]).is_empty(), "which of the two?");
    assert_eq!(offered(vec![grant("node:d1/camera.snap")]).len(), 1);
    nodes.send(NodeLeaves { connection: second.client.connection }).await.unwrap();
    assert_eq!(offered(vec![by_name]).len(), 1);
}
