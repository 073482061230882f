//! Why a server was not greeted, or a call failed, in words for operators and models: without the names of
//! rmcp's types.

use rmcp::service::{ClientInitializeError, ServiceError};
use rmcp::transport::DynamicTransportError;

/// What rmcp puts before what our own client says.
const OURS: &str = "Client error: ";

/// Why a server was not greeted.
pub(super) fn not_greeted(error: &ClientInitializeError) -> String {
    match error {
        ClientInitializeError::TransportError { error, .. } => of_transport(error),
        ClientInitializeError::JsonRpcError(error) => format!("it refuses: {}", error.message),
        ClientInitializeError::ConnectionClosed(_) => "it closed the connection".to_owned(),
        ClientInitializeError::ConflictInitResponseId(..) => "its answer is to another question".to_owned(),
        ClientInitializeError::ExpectedInitResponse(_) | ClientInitializeError::ExpectedInitResult(_) => {
            "its answer is none to a greeting".to_owned()
        }
        error => error.to_string(),
    }
}

/// Why a call, or another question, has no result.
pub(super) fn not_answered(error: &ServiceError) -> String {
    match error {
        ServiceError::McpError(error) => error.message.clone().into_owned(),
        ServiceError::TransportSend(error) => of_transport(error),
        ServiceError::TransportClosed => "it closed the connection".to_owned(),
        error => error.to_string(),
    }
}

fn of_transport(error: &DynamicTransportError) -> String {
    let said = error.error.to_string();
    said.strip_prefix(OURS).unwrap_or(&said).to_owned()
}
