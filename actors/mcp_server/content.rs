//! What a model is told of a result: its texts, and of what is no text what it is.

use rmcp::model::{CallToolResult, ContentBlock, ResourceContents};

/// The text of a result.
pub(super) fn text(result: &CallToolResult) -> String {
    let mut texts: Vec<String> = result.content.iter().map(block).collect();
    if texts.is_empty()
        && let Some(structured) = &result.structured_content
    {
        texts.push(structured.to_string());
    }
    texts.join("\n")
}

fn block(block: &ContentBlock) -> String {
    match block {
        ContentBlock::Text(text) => text.text.clone(),
        ContentBlock::Image(image) => left_out(&image.mime_type, &image.data),
        ContentBlock::Audio(audio) => left_out(&audio.mime_type, &audio.data),
        ContentBlock::Resource(embedded) => match &embedded.resource {
            ResourceContents::TextResourceContents { text, .. } => text.clone(),
            ResourceContents::BlobResourceContents { mime_type, blob, .. } => {
                left_out(mime_type.as_deref().unwrap_or("application/octet-stream"), blob)
            }
            _ => "[a resource]".to_owned(),
        },
        ContentBlock::ResourceLink(link) => format!("[{}: {}]", link.name, link.uri),
        _ => "[content of another kind]".to_owned(),
    }
}

/// Models get text alone.
fn left_out(kind: &str, base64: &str) -> String {
    format!("[{kind}, {} bytes, left out]", base64.len() / 4 * 3)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn models_are_told_texts_and_of_the_rest_what_it_is() {
        for (result, told) in [
            (
                json!({ "content": [{ "type": "text", "text": "a" }, { "type": "text", "text": "b" }] }),
                "a\nb",
            ),
            (
                json!({ "content": [{ "type": "image", "mimeType": "image/png", "data": "AAAAAAAA" }] }),
                "[image/png, 6 bytes, left out]",
            ),
            (
                json!({ "content": [{ "type": "resource", "resource": { "uri": "file:///x", "text": "inside" } }] }),
                "inside",
            ),
            (
                json!({ "content": [{ "type": "resource_link", "uri": "file:///x", "name": "x" }] }),
                "[x: file:///x]",
            ),
            (json!({ "content": [], "structuredContent": { "sum": 3 } }), r#"{"sum":3}"#),
            (json!({ "content": [] }), ""),
        ] {
            let result: CallToolResult = serde_json::from_value(result).unwrap();
            assert_eq!(text(&result), told);
        }
    }
}
