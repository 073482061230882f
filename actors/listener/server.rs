//! The HTTP server: what accepts connections, answers plain requests and hands over the others, see
//! [`upgraded`].

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::rc::Rc;
use std::sync::Arc;

use actix_http::{Extensions, HttpService};
use actix_service::{ServiceFactory as _, fn_factory, fn_service, map_config};
use actix_web::dev::{AppConfig, Server};
use actix_web::rt::net::TcpStream;
use actix_web::{App, web};

use super::{RESET_GRACE, keep_alive, upgraded};
use crate::connection::link::Peer;
use crate::connection::strangers::Said;
use crate::http::{Front, serve};
use crate::runtime::arbiters::Arbiters;

/// Serves these sockets on so many threads, each of which takes so many connections.
///
/// # Errors
/// Where a socket can't be used.
pub(super) fn run(
    sockets: Vec<TcpListener>,
    front: &Arc<Front>,
    arbiters: &Arbiters,
    workers: usize,
    connections_max: usize,
) -> io::Result<Server> {
    let handshake_timeout = front.services.terms.get().gateway.handshake_timeout;
    let mut server = Server::build()
        .workers(workers)
        .worker_max_blocking_threads(1)
        .max_concurrent_connections(connections_max)
        .shutdown_timeout(RESET_GRACE.as_secs())
        .disable_signals();
    for socket in sockets {
        let (front, arbiters) = (front.clone(), arbiters.clone());
        server = server.listen("http", socket, move || {
            arbiters.enter();
            let data = web::Data::from(front.clone());
            let app = move || {
                let app = App::new().app_data(data.clone()).default_service(web::to(serve));
                map_config(app, |()| AppConfig::default())
            };
            let for_upgrades = app.clone();
            let entered = front.clone();
            HttpService::build()
                .keep_alive(keep_alive(handshake_timeout))
                .client_request_timeout(handshake_timeout)
                // For so long what still comes is read and dropped, so that the peer gets to read the end.
                .client_disconnect_timeout(RESET_GRACE)
                .on_connect_ext(move |io, extensions| enter(&entered, io, extensions))
                .upgrade(fn_factory(move || {
                    let app = for_upgrades().new_service(());
                    async move {
                        let app = Rc::new(app.await?);
                        Ok::<_, ()>(fn_service(move |(request, framed)| {
                            Box::pin(upgraded::serve(app.clone(), request, framed))
                        }))
                    }
                }))
                .finish(app())
                .tcp()
        })?;
    }
    Ok(server.run())
}

/// Enters a connection that was accepted.
fn enter(front: &Front, io: &TcpStream, extensions: &mut Extensions) {
    let accepted = io.peer_addr().and_then(|from| {
        let to = io.local_addr()?;
        front.registry.accept(io, Peer::Tcp { from, to })
    });
    match accepted {
        Ok(link) => {
            extensions.insert(link);
        }
        // It left before it was looked at.
        Err(error) if error.kind() == io::ErrorKind::NotConnected => {
            tracing::debug!("connection not entered: {error}");
        }
        Err(error) => {
            let nowhere = SocketAddr::from(([0, 0, 0, 0], 0));
            let peer = Peer::Tcp { from: io.peer_addr().unwrap_or(nowhere), to: nowhere };
            front.services.strangers.tell(peer, "connection not entered", &error, Said::default());
        }
    }
}
