//! The limit of what the daemon is built with: actix-web and actix-web-actors alone, which echo; and with awc, which
//! send on each event of what a provider says.

use actix::{Actor, ActorContext, ActorFutureExt, AsyncContext, StreamHandler, WrapFuture};
use actix_web::{App, Error, HttpRequest, HttpResponse, HttpServer, web};
use actix_web_actors::ws::{self, Message, ProtocolError, WebsocketContext};
use awc::error::PayloadError;
use bytes::{Bytes, BytesMut};

use super::relay::event_length;

/// Echoes every text frame.
pub fn echo() {
    serve(|config| {
        config.default_service(web::to(async |request: HttpRequest, stream: web::Payload| {
            ws::start(Echo, &request, stream)
        }));
    });
}

/// For every text frame asks the model, and sends each event of its answer on as it is.
pub fn relay(model: &str) {
    let url = format!("http://{model}/v1/chat/completions");
    serve(move |config| {
        // One client for each worker.
        config.app_data(web::Data::new(awc::Client::new())).app_data(web::Data::new(url.clone()));
        config.default_service(web::to(upgrade));
    });
}

async fn upgrade(
    client: web::Data<awc::Client>,
    url: web::Data<String>,
    request: HttpRequest,
    stream: web::Payload,
) -> Result<HttpResponse, Error> {
    ws::start(
        Relay { client: (**client).clone(), url: url.to_string(), said: BytesMut::new() },
        &request,
        stream,
    )
}

fn serve(configure: impl Fn(&mut web::ServiceConfig) + Clone + Send + 'static) {
    let served = actix::System::new().block_on(async move {
        let server = HttpServer::new(move || App::new().configure(configure.clone()));
        let server = server.backlog(4096).bind("127.0.0.1:0")?;
        println!("http://{}", server.addrs()[0]);
        server.run().await
    });
    served.expect("it serves");
}

struct Echo;

impl Actor for Echo {
    type Context = WebsocketContext<Self>;
}

impl StreamHandler<Result<Message, ProtocolError>> for Echo {
    fn handle(&mut self, message: Result<Message, ProtocolError>, ctx: &mut Self::Context) {
        match message {
            Ok(Message::Text(text)) => ctx.text(text),
            Ok(Message::Ping(bytes)) => ctx.pong(&bytes),
            Ok(Message::Close(_)) | Err(_) => ctx.stop(),
            _ => {}
        }
    }
}

struct Relay {
    client: awc::Client,
    url: String,
    /// What has come of an event.
    said: BytesMut,
}

impl Actor for Relay {
    type Context = WebsocketContext<Self>;
}

impl StreamHandler<Result<Message, ProtocolError>> for Relay {
    fn handle(&mut self, message: Result<Message, ProtocolError>, ctx: &mut Self::Context) {
        match message {
            Ok(Message::Text(text)) => {
                let answer = self.client.post(&self.url).no_decompress().send_body(text.into_bytes());
                ctx.spawn(answer.into_actor(self).map(|answer, _, ctx| match answer {
                    Ok(answer) => {
                        ctx.add_stream(answer);
                    }
                    Err(_) => ctx.stop(),
                }));
            }
            Ok(Message::Close(_)) | Err(_) => ctx.stop(),
            _ => {}
        }
    }
}

impl StreamHandler<Result<Bytes, PayloadError>> for Relay {
    fn handle(&mut self, piece: Result<Bytes, PayloadError>, ctx: &mut Self::Context) {
        let Ok(piece) = piece else { return ctx.stop() };
        self.said.extend_from_slice(&piece);
        while let Some(length) = event_length(&self.said) {
            ctx.binary(self.said.split_to(length).freeze());
        }
    }

    fn finished(&mut self, ctx: &mut Self::Context) {
        // An empty frame ends the answer.
        ctx.binary(Bytes::new());
    }
}
