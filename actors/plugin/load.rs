//! Loading a plugin: its module is read, compiled and asked to describe itself. Guest code runs in that, so
//! it is done where guests may run, never on an arbiter.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use clawmux_core::config;
use clawmux_core::error::{Error, ErrorCode};
use clawmux_core::ids::PluginName;
use clawmux_core::tools::call::ToolSpec;
use clawmux_core::tools::plugin::signature::PublicKey;
use clawmux_core::tools::plugin::{InputSchema, PluginSummary};
use serde_json::{Value, json};
use tokio::sync::watch;

use crate::sandbox::cache::Cache;
use crate::sandbox::engine::Engine;
use crate::sandbox::module::AdapterExports;
use crate::sandbox::source::{self, Package, Source};

/// How long reading, compiling and describing a module may take.
pub const LOAD_MAX: Duration = Duration::from_secs(30);

/// Plugins that are loaded at a time. The memory of as many compilers is what a start may take.
pub const LOADS_MAX: usize = 4;

/// How long a plugin may wait for others to be loaded: as long as all there may be take, should each
/// take all it may.
pub const LOAD_WAIT_MAX: Duration = Duration::from_secs(LOAD_MAX.as_secs() * 256 / LOADS_MAX as u64);

/// The most bytes of `describe`'s answer.
const DESCRIPTION_BYTES_MAX: usize = 64 * 1024;

/// What became of loading.
#[derive(Clone, Debug)]
pub enum Loading {
    /// It is under way.
    UnderWay,
    /// The plugin can be called.
    Done(Arc<Loaded>),
    /// It can't; nor later, unless somebody changes something.
    Failed(Error),
}

/// A plugin that can be called, as others see it.
#[derive(Debug)]
pub struct Loaded {
    /// What was loaded.
    pub package: Arc<Package>,
    /// For lists.
    pub summary: PluginSummary,
    /// What kind of plugin it is.
    pub kind: Kind,
    /// Whether a call that was cut off may be made again.
    pub idempotent: bool,
}

/// What a plugin is.
#[derive(Clone, Debug)]
pub enum Kind {
    /// A tool.
    Tool {
        /// For models.
        spec: ToolSpec,
        /// What its input has to fit.
        schema: Arc<InputSchema>,
    },
    /// An adapter of a channel.
    Adapter(AdapterExports),
}

impl Loaded {
    /// It as models are told of it; none where it is no tool.
    pub fn tool(&self) -> Option<&ToolSpec> {
        match &self.kind {
            Kind::Tool { spec, .. } => Some(spec),
            Kind::Adapter(_) => None,
        }
    }
}

/// What became of loading, once that is settled.
pub async fn settled(mut loading: watch::Receiver<Loading>) -> Result<Arc<Loaded>, Error> {
    let settled = loading.wait_for(|loading| !matches!(loading, Loading::UnderWay)).await;
    match settled.as_deref() {
        Ok(Loading::Done(loaded)) => Ok(Arc::clone(loaded)),
        Ok(Loading::Failed(error)) => Err(error.clone()),
        // The actor ended meanwhile.
        Ok(Loading::UnderWay) | Err(_) => {
            Err(ErrorCode::Unavailable.error("the plugin crashed while it was being loaded, try again"))
        }
    }
}

/// Reads it and has it describe itself, compiled for that where it did not do so before, for as long as it is
/// `wanted`. With an engine where one was made. Blocks.
///
/// # Errors
/// What is wrong with it, with its name.
pub(super) fn load(
    name: &PluginName,
    source: &Source,
    entry: Option<&config::Plugin>,
    trusted: &[PublicKey],
    cache: &Cache,
    wanted: &dyn Fn() -> bool,
) -> Result<(Option<Engine>, Loaded), Error> {
    let fail = |why: String| ErrorCode::InvalidRequest.error(format!("plugin {name}: {why}"));
    let package = source.read(name, entry, trusted)?;
    let (engine, output) = match cache.described(&package) {
        Some(output) => (None, output),
        None => {
            let (mut engine, _loading) = Engine::load(&package, cache, wanted)
                .map_err(|why| why.code().error(format!("plugin {name}: {why}")))?;
            let output = engine.call("describe", b"{}", None, |_| ());
            (Some(engine), output.map_err(|failure| fail(format!("describe {failure}")))?)
        }
    };
    if output.len() > DESCRIPTION_BYTES_MAX {
        return Err(fail(format!(
            "describe answers with {} bytes, more than {DESCRIPTION_BYTES_MAX}",
            output.len()
        )));
    }
    let described: Value = serde_json::from_slice(&output)
        .map_err(|error| fail(format!("describe does not answer with JSON: {error}")))?;
    let said = described.get("type").and_then(Value::as_str).unwrap_or("tool");
    let adapter = package.inspected.adapter;
    match (said, adapter) {
        ("tool", None) | ("channel_adapter", Some(_)) => {}
        ("tool" | "channel_adapter", _) => {
            return Err(fail(format!("describe says it is a {said}, and what it exports is another kind's")));
        }
        (other, _) => {
            return Err(fail(format!("describe says it is a {other}; there are tool and channel_adapter")));
        }
    }
    let text = |value: Option<&Value>| value.and_then(Value::as_str).map(str::to_owned);
    let manifest = &package.manifest;
    let description =
        text(described.get("description")).or_else(|| manifest.description.clone()).unwrap_or_default();
    let input_schema = match described.get("input_schema") {
        None | Some(Value::Null) => json!({"type": "object", "properties": {}}),
        Some(schema @ Value::Object(_)) => schema.clone(),
        Some(_) => return Err(fail("describe's input_schema is not an object".to_owned())),
    };
    let kind = match adapter {
        Some(exports) => Kind::Adapter(exports),
        None => {
            let schema = InputSchema::new(&input_schema)
                .map_err(|why| fail(format!("describe's input_schema is no JSON Schema: {why}")))?;
            let spec = ToolSpec { name: name.clone(), description: description.clone(), input_schema };
            Kind::Tool { spec, schema: Arc::new(schema) }
        }
    };
    if engine.is_some() {
        cache.keep_described(&package, &output);
    }
    let loaded = Loaded {
        summary: PluginSummary {
            name: name.clone(),
            version: manifest.version.clone(),
            description: manifest.description.clone().unwrap_or(description),
            capabilities: package.grants.iter().map(ToString::to_string).collect(),
        },
        kind,
        idempotent: manifest.idempotent,
        package: Arc::new(package),
    };
    Ok((engine, loaded))
}

/// What is wrong with the configured plugins, each tried as it is when the daemon starts, where it can be
/// read at all: for what can't be, see [`source::check`]. `home` is where relative paths start. Blocks,
/// for as long as it takes to compile them.
pub fn attempt(plugins: &[config::Plugin], trusted: &[PublicKey], home: &Path, cache: &Cache) -> Vec<Error> {
    let embedded = source::embedded();
    let tried = plugins.iter().filter_map(|plugin| {
        let mut plugin = plugin.clone();
        plugin.path = plugin.path.map(|path| home.join(path));
        let source = Source::own(&embedded, &plugin.name, Some(&plugin))?;
        source.read(&plugin.name, Some(&plugin), trusted).ok()?;
        let mut error = load(&plugin.name, &source, Some(&plugin), trusted, cache, &|| true).err()?;
        if let Some(path) = &plugin.path {
            error.message = format!("{}: {}", path.display(), error.message);
        }
        Some(error)
    });
    tried.collect()
}
