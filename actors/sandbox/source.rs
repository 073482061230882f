//! Where a plugin's module comes from, and what it is therefore granted.
//!
//! A grant belongs to the module it was written for. A plugin that ships in the binary has what
//! its manifest asks for, because we wrote both; a configured one has what its entry says; a file
//! loaded at run time has nothing, unless it is the file a configured entry names.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fs;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use clawmux_core::config;
use clawmux_core::error::{Error, ErrorCode};
use clawmux_core::hex::hex;
use clawmux_core::ids::PluginName;
use clawmux_core::tools::plugin::signature::{self, PublicKey};
use clawmux_core::tools::plugin::{Capability, Manifest, Rights, SecretGrant};
use sha2::{Digest as _, Sha256};

use super::{Limits, module};

/// A plugin that ships in the binary.
#[derive(Clone, Debug)]
pub struct Embedded {
    /// Its name.
    pub name: &'static str,
    /// Its module.
    pub module: Cow<'static, [u8]>,
    /// Its manifest.
    pub manifest: Cow<'static, str>,
}

impl Embedded {
    /// Whether it is loaded where nobody mentions it.
    pub fn is_default(&self) -> bool {
        config::DEFAULT_TOOLS.contains(&self.name)
    }
}

macro_rules! embedded {
    ($($name:literal),*) => {
        /// The plugins that ship in the binary: [`config::EMBEDDED_PLUGINS`].
        pub fn embedded() -> Vec<Embedded> {
            vec![$(Embedded {
                name: $name,
                module: Cow::Borrowed(include_bytes!(concat!("../../plugins/", $name, "/", $name, ".wasm"))),
                manifest: Cow::Borrowed(include_str!(concat!("../../plugins/", $name, "/", $name, ".toml"))),
            }),*]
        }
    };
}

embedded!("calc", "clock", "echo", "fetch", "notes", "slack", "telegram", "webhook");

/// Where one plugin comes from.
#[derive(Clone, Debug)]
pub enum Source {
    /// The binary itself.
    Embedded(Embedded),
    /// The file its configuration names.
    Configured(PathBuf),
    /// A file named at run time, relative to this folder, which it may not leave.
    Loaded {
        /// The plugins folder of the home.
        folder: PathBuf,
        /// The file, as it was named.
        path: String,
    },
}

/// A module with all that was decided about it.
#[derive(Clone, Debug)]
pub struct Package {
    /// The name it is loaded under.
    pub name: PluginName,
    /// The module, checked.
    pub module: Vec<u8>,
    /// Of the module.
    pub sha256: [u8; 32],
    /// What the checks learnt.
    pub inspected: module::Inspected,
    /// Its manifest, or an empty one.
    pub manifest: Manifest,
    /// Who signed that.
    pub signer: Option<PublicKey>,
    /// What it is granted, as it was written.
    pub grants: Vec<Capability>,
    /// What it may do by that.
    pub rights: Arc<Rights>,
    /// What a call may use.
    pub limits: Limits,
    /// What its configuration tells it.
    pub settings: BTreeMap<String, String>,
}

impl Package {
    /// Tells it from any other: module, manifest, grants with their secrets, and limits.
    pub fn digest(&self) -> [u8; 32] {
        let about = format!("{:?}{:?}{:?}{:?}", self.manifest, self.rights, self.limits, self.settings);
        let mut digest = Sha256::new().chain_update(self.sha256).chain_update(about);
        for granted in &self.rights.secrets {
            // Not shown by `Debug`.
            digest = digest.chain_update([0]).chain_update(granted.secret.value.expose());
        }
        digest.finalize().into()
    }
}

/// Checks that `name` can be the name of a tool at every model provider.
///
/// # Errors
/// `InvalidRequest` where it is not 1 to 64 of the characters `a-z A-Z 0-9 _ -`.
pub fn check_name(name: &PluginName) -> Result<(), Error> {
    let text = name.as_str();
    let plain = text.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-'));
    if plain && (1..=64).contains(&text.len()) {
        Ok(())
    } else {
        Err(ErrorCode::InvalidRequest
            .error(format!("plugin {text:?}: a name is 1 to 64 of the characters a-z, A-Z, 0-9, _ and -")))
    }
}

impl Source {
    /// Where the plugin `name` comes from where nobody says: the file its entry names, or the
    /// binary.
    pub fn own(embedded: &[Embedded], name: &PluginName, entry: Option<&config::Plugin>) -> Option<Self> {
        match entry.and_then(|entry| entry.path.clone()) {
            Some(path) => Some(Self::Configured(path)),
            None => embedded
                .iter()
                .find(|embedded| embedded.name == name.as_str())
                .map(|embedded| Self::Embedded(embedded.clone())),
        }
    }

    /// In a word, what kind of place that is.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Embedded(_) => "embedded",
            Self::Configured(_) => "configured",
            Self::Loaded { .. } => "loaded",
        }
    }

    /// The file; none for what ships in the binary.
    pub fn path(&self) -> Option<PathBuf> {
        match self {
            Self::Embedded(_) => None,
            Self::Configured(path) => Some(path.clone()),
            Self::Loaded { folder, path } => Some(folder.join(path)),
        }
    }

    /// Reads and checks the plugin `name`. `entry` is its entry in the configuration, with paths
    /// already made absolute. Blocks: not for an arbiter.
    ///
    /// # Errors
    /// `NotFound`, `Forbidden`, `TooLarge` or `InvalidRequest`, with the plugin's name and why.
    pub fn read(
        &self,
        name: &PluginName,
        entry: Option<&config::Plugin>,
        trusted: &[PublicKey],
    ) -> Result<Package, Error> {
        check_name(name)?;
        let fail = |code: ErrorCode, why: String| code.error(format!("plugin {name}: {why}"));
        let (module, (manifest, signer), granting, asks_is_enough) = match self {
            Self::Embedded(embedded) => {
                let manifest = Manifest::parse(&format!("{}.toml", embedded.name), &embedded.manifest)?;
                (embedded.module.to_vec(), (manifest, None), entry, true)
            }
            Self::Configured(path) => (read_module(name, path)?, read_manifest(path)?, entry, false),
            Self::Loaded { folder, path } => {
                let file = within(folder, path).map_err(|(code, why)| fail(code, why))?;
                let configured = entry.and_then(|entry| entry.path.as_ref());
                let same =
                    configured.and_then(|path| path.canonicalize().ok()).is_some_and(|path| path == file);
                (read_module(name, &file)?, read_manifest(&file)?, entry.filter(|_| same), false)
            }
        };
        if let Some(own) = manifest.name.as_deref().filter(|own| *own != name.as_str()) {
            return Err(fail(
                ErrorCode::InvalidRequest,
                format!("its manifest is for a plugin named {own:?}"),
            ));
        }
        let pinned = granting.and_then(|entry| entry.sha256);
        let sha256 = Sha256::digest(&module).into();
        check_module(&sha256, &manifest, pinned).map_err(|why| fail(ErrorCode::Forbidden, why))?;
        let vouched = asks_is_enough
            || pinned.is_some()
            || granting.is_some_and(|entry| entry.may_be_unsigned)
            || signer.is_some_and(|signer| trusted.contains(&signer));
        if !trusted.is_empty() && !vouched {
            let signer = signer.map_or("unsigned".to_owned(), |signer| format!("signed by {signer}"));
            return Err(fail(
                ErrorCode::Forbidden,
                format!(
                    "it is {signer}, not by one of sandbox.trusted_keys: sign it (`clawmux plugin sign`), or write \
                     sha256 or unsigned = \"allow\" into its entry"
                ),
            ));
        }
        let limits = granting.map_or_else(Limits::default, |entry| entry.limits);
        let grants = match granting.and_then(|entry| entry.capabilities.clone()) {
            Some(granted) => granted,
            None if asks_is_enough => manifest.capabilities.clone().unwrap_or_default(),
            None => Vec::new(),
        };
        if let Some(asked) = &manifest.capabilities {
            let asked = [asked.as_slice(), &manifest.optional].concat();
            check_covered(&asked, &grants).map_err(|why| fail(ErrorCode::Forbidden, why))?;
        }
        let no_secrets = BTreeMap::new();
        let secrets = granting.map_or(&no_secrets, |entry| &entry.secrets);
        let rights = Arc::new(Rights::new(&grants, secrets));
        let inspected = module::inspect(name, &module, &limits, &rights)?;
        Ok(Package {
            name: name.clone(),
            module,
            sha256,
            inspected,
            manifest,
            signer,
            grants,
            rights,
            limits,
            settings: granting.map_or_else(BTreeMap::new, |entry| entry.settings.clone()),
        })
    }
}

/// Checks that a module, which has this SHA-256, is the one that its manifest, and its entry, are for.
pub(super) fn check_module(
    sha256: &[u8; 32],
    manifest: &Manifest,
    pinned: Option<[u8; 32]>,
) -> Result<(), String> {
    for (wanted, who) in [(manifest.sha256, "its manifest is for"), (pinned, "its entry wants")] {
        if let Some(wanted) = wanted.filter(|wanted| wanted != sha256) {
            return Err(format!("the module has the SHA-256 {}, and {who} {}", hex(sha256), hex(&wanted)));
        }
    }
    Ok(())
}

/// Checks that a manifest asks for all that is granted: what nobody needs is a mistake, or somebody's way in.
fn check_covered(asked: &[Capability], granted: &[Capability]) -> Result<(), String> {
    let is_covered = |granted: &Capability| {
        asked.iter().any(|asked| asked.covers(granted))
            || matches!(granted, Capability::Secret(secret) if goes_where_it_may_ask(secret, asked))
    };
    let extra = granted.iter().find(|granted| !is_covered(granted));
    match extra {
        None => Ok(()),
        Some(extra) if asked.is_empty() => {
            Err(format!("it is granted {extra}, and its manifest asks for nothing"))
        }
        Some(extra) => {
            let asked: Vec<String> = asked.iter().map(ToString::to_string).collect();
            Err(format!("it is granted {extra}, and its manifest asks for {} only", asked.join(", ")))
        }
    }
}

/// Whether a secret that is asked for is granted for a host that is asked for: the operator may send it elsewhere.
fn goes_where_it_may_ask(granted: &SecretGrant, asked: &[Capability]) -> bool {
    let is_named =
        |asked: &Capability| matches!(asked, Capability::Secret(asked) if asked.name == granted.name);
    let is_reached = |asked: &Capability| matches!(asked, Capability::Http(http) if http.covers(&granted.to));
    asked.iter().any(is_named) && asked.iter().any(is_reached)
}

/// What is wrong with the configured plugins, each judged as it would be when loaded, without
/// compiling or running any. `home` is where relative paths start. Blocks: not for an arbiter.
pub fn check(plugins: &[config::Plugin], trusted: &[PublicKey], home: &Path) -> Vec<Error> {
    plugins
        .iter()
        .filter_map(|plugin| {
            let mut plugin = plugin.clone();
            plugin.path = plugin.path.map(|path| home.join(path));
            match Source::own(&embedded(), &plugin.name, Some(&plugin)) {
                Some(source) => source.read(&plugin.name, Some(&plugin), trusted).err().map(|mut error| {
                    if let Some(path) = plugin.path.as_ref().map(|path| path.display().to_string())
                        && !error.message.contains(&path)
                    {
                        error.message = format!("{path}: {}", error.message);
                    }
                    error
                }),
                None => Some(ErrorCode::NotFound.error(format!(
                    "plugin {}: it has no path, and none of this name ships in the binary",
                    plugin.name
                ))),
            }
        })
        .collect()
}

/// The file `path` in `folder`, both without symbolic links, so that what was checked is what is
/// read.
fn within(folder: &Path, path: &str) -> Result<PathBuf, (ErrorCode, String)> {
    let missing = |path: &Path| (ErrorCode::NotFound, format!("there is no file {}", path.display()));
    let asked = folder.join(path);
    let folder = folder.canonicalize().map_err(|_| missing(folder))?;
    let outside = || (ErrorCode::Forbidden, format!("{path:?} is not in {}", folder.display()));
    // Says the same of everything outside, so that nobody learns which files exist there.
    if asked.components().any(|part| part == std::path::Component::ParentDir) {
        return Err(outside());
    }
    match asked.canonicalize() {
        Ok(file) if file.starts_with(&folder) && file != folder => Ok(file),
        Ok(_) => Err(outside()),
        Err(_) if Path::new(path).is_absolute() => Err(outside()),
        Err(_) => Err(missing(&asked)),
    }
}

fn read_module(name: &PluginName, path: &Path) -> Result<Vec<u8>, Error> {
    read_file(path, module::BYTES_MAX).map_err(|error| {
        let code = match error.kind() {
            std::io::ErrorKind::NotFound => ErrorCode::NotFound,
            _ => ErrorCode::InvalidRequest,
        };
        code.error(format!("plugin {name}: cannot read {}: {error}", path.display()))
    })
}

/// The manifest beside the module, and who signed it; an empty one where there is none.
pub(super) fn read_manifest(module: &Path) -> Result<(Manifest, Option<PublicKey>), Error> {
    let path = module.with_extension("toml");
    let bytes = match read_file(&path, Manifest::BYTES_MAX) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok((Manifest::default(), None)),
        Err(error) => {
            return Err(ErrorCode::InvalidRequest.error(format!("cannot read {}: {error}", path.display())));
        }
    };
    let file = path.display().to_string();
    let text = String::from_utf8(bytes)
        .map_err(|_| ErrorCode::InvalidRequest.error(format!("{file}: a manifest is UTF-8 text")))?;
    let manifest = Manifest::parse(&file, &text)?;
    let signed = match read_file(&signature_file(module), SIGNATURE_BYTES_MAX) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok((manifest, None)),
        Err(error) => {
            return Err(ErrorCode::InvalidRequest.error(format!("cannot read {file}.sig: {error}")));
        }
    };
    let signer = signature::signer(&String::from_utf8_lossy(&signed), text.as_bytes())
        .map_err(|why| ErrorCode::Forbidden.error(format!("{file}.sig: {why}")))?;
    if manifest.sha256.is_none() {
        let why = "it is signed, and does not say the sha256 of its module";
        return Err(ErrorCode::Forbidden.error(format!("{file}: {why}")));
    }
    Ok((manifest, Some(signer)))
}

/// The largest file of a signature, in bytes.
const SIGNATURE_BYTES_MAX: usize = 4096;

/// Where the signature of a module's manifest is: `NAME.toml.sig`.
pub fn signature_file(module: &Path) -> PathBuf {
    module.with_extension("toml.sig")
}

/// A regular file of at most `bytes_max` bytes, and one more where it has more.
pub(super) fn read_file(path: &Path, bytes_max: usize) -> std::io::Result<Vec<u8>> {
    // Before opening: opening a pipe would wait for its other end.
    if !fs::metadata(path)?.is_file() {
        return Err(std::io::Error::other("it is not a file"));
    }
    let mut bytes = Vec::new();
    fs::File::open(path)?.take(bytes_max as u64 + 1).read_to_end(&mut bytes)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clawmux_core::tools::plugin::HostFunction;
    use std::fmt::Write as _;
    use std::os::unix::fs::symlink;
    use std::time::Duration;

    fn tool() -> Vec<u8> {
        wat::parse_str("(module (func (export \"describe\")) (func (export \"handle_tool_call\")))").unwrap()
    }

    fn entry(name: &str, path: Option<PathBuf>, capabilities: Option<Vec<Capability>>) -> config::Plugin {
        config::Plugin {
            approval: config::Approval::Never,
            settings: std::collections::BTreeMap::new(),
            name: name.into(),
            path,
            capabilities,
            secrets: BTreeMap::new(),
            limits: Limits { timeout: Duration::from_secs(1), memory_mb: 8, fuel: 1000, ..Limits::default() },
            concurrent_calls: 0,
            sha256: None,
            may_be_unsigned: false,
        }
    }

    fn clock() -> Capability {
        Capability::HostFunction(HostFunction::Clock)
    }

    #[test]
    fn every_embedded_plugin_can_be_read() {
        let names: Vec<&str> = embedded().iter().map(|embedded| embedded.name).collect();
        assert_eq!(names, config::EMBEDDED_PLUGINS);
        for embedded in embedded() {
            let name = PluginName::from(embedded.name);
            let package = Source::Embedded(embedded).read(&name, None, &[]).unwrap();
            assert_eq!(package.manifest.name.as_deref(), Some(name.as_str()));
            assert_eq!(Some(package.grants), package.manifest.capabilities);
        }
    }

    #[test]
    fn committed_modules_have_their_digests() {
        for (embedded, line) in embedded().iter().zip([
            include_str!("../../plugins/calc/calc.wasm.sha256"),
            include_str!("../../plugins/clock/clock.wasm.sha256"),
            include_str!("../../plugins/echo/echo.wasm.sha256"),
            include_str!("../../plugins/fetch/fetch.wasm.sha256"),
            include_str!("../../plugins/notes/notes.wasm.sha256"),
        ]) {
            let mut digest = String::new();
            for byte in Sha256::digest(&embedded.module) {
                write!(digest, "{byte:02x}").unwrap();
            }
            assert_eq!(line, format!("{digest}  {}.wasm\n", embedded.name), "run plugins/build");
        }
    }

    #[test]
    fn embedded_plugins_have_what_they_ask_for_or_exactly_what_is_configured() {
        let clock_module = embedded().into_iter().find(|embedded| embedded.name == "clock").unwrap();
        let source = Source::Embedded(clock_module);
        let name = PluginName::new("clock");
        let package = source.read(&name, None, &[]).unwrap();
        assert_eq!((package.grants, package.limits), (vec![clock()], Limits::default()));
        let package = source.read(&name, Some(&entry("clock", None, None)), &[]).unwrap();
        assert_eq!((package.grants, package.limits.memory_mb), (vec![clock()], 8));
        let error = source.read(&name, Some(&entry("clock", None, Some(Vec::new()))), &[]).unwrap_err();
        assert_eq!(error.code, ErrorCode::Forbidden, "{error}");
    }

    #[test]
    fn a_file_has_nothing_but_what_its_entry_says() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("x.wasm");
        fs::write(&path, tool()).unwrap();
        let source = Source::Configured(path.clone());
        assert_eq!(source.read(&"x".into(), None, &[]).unwrap().grants, Vec::new());
        fs::write(home.path().join("x.toml"), "version = \"2\"\ncapabilities = [\"host_function:clock\"]\n")
            .unwrap();
        let package = source.read(&"x".into(), Some(&entry("x", Some(path.clone()), None)), &[]).unwrap();
        assert_eq!((package.grants, package.manifest.version.as_deref()), (Vec::new(), Some("2")));
        let package =
            source.read(&"x".into(), Some(&entry("x", Some(path), Some(vec![clock()]))), &[]).unwrap();
        assert_eq!(package.grants, [clock()]);
        fs::write(home.path().join("x.toml"), "\nidempotent = 1\n").unwrap();
        let error = source.read(&"x".into(), None, &[]).unwrap_err();
        assert!(error.message.contains("x.toml:2: idempotent is integer"), "{error}");
        fs::write(home.path().join("x.toml"), "name = \"y\"\n").unwrap();
        let error = source.read(&"x".into(), None, &[]).unwrap_err();
        assert_eq!(error.message, "plugin x: its manifest is for a plugin named \"y\"");
    }

    #[test]
    fn check_says_what_is_wrong_with_each_plugin() {
        let home = tempfile::tempdir().unwrap();
        fs::write(home.path().join("good.wasm"), tool()).unwrap();
        fs::write(home.path().join("bad.wasm"), "bad").unwrap();
        let plugins = [
            entry("echo", None, None),
            entry("good", Some("good.wasm".into()), None),
            entry("bad", Some("bad.wasm".into()), None),
            entry("gone", Some("gone.wasm".into()), None),
            entry("other", None, None),
        ];
        let complaints: Vec<String> =
            check(&plugins, &[], home.path()).iter().map(ToString::to_string).collect();
        assert_eq!(complaints.len(), 3, "{complaints:?}");
        let bad = home.path().join("bad.wasm");
        assert_eq!(
            complaints[0],
            format!("{}: plugin bad: the file is not a WebAssembly module", bad.display())
        );
        assert!(complaints[1].starts_with("plugin gone: cannot read "), "{complaints:?}");
        assert!(complaints[2].starts_with("plugin other: it has no path"), "{complaints:?}");
    }

    #[test]
    fn a_grant_does_not_follow_the_name_to_another_file() {
        let home = tempfile::tempdir().unwrap();
        let folder = home.path().join("plugins");
        fs::create_dir(&folder).unwrap();
        for file in ["x.wasm", "other.wasm"] {
            fs::write(folder.join(file), tool()).unwrap();
        }
        let entry = entry("x", Some(folder.join("x.wasm")), Some(vec![clock()]));
        let loaded = |path: &str| Source::Loaded { folder: folder.clone(), path: path.to_owned() };
        let package = loaded("x.wasm").read(&"x".into(), Some(&entry), &[]).unwrap();
        assert_eq!((package.grants, package.limits.memory_mb), (vec![clock()], 8));
        let package = loaded("other.wasm").read(&"x".into(), Some(&entry), &[]).unwrap();
        assert_eq!((package.grants, package.limits), (Vec::new(), Limits::default()));
    }

    #[test]
    fn where_there_are_trusted_keys_a_plugin_is_vouched_for() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("x.wasm");
        fs::write(&path, tool()).unwrap();
        let (source, name) = (Source::Configured(path.clone()), PluginName::new("x"));
        let (secret, stranger) = ([1; 32], [2; 32]);
        let trusted = [signature::public_key(&secret)];
        let mut entry = entry("x", Some(path.clone()), None);
        let refused = |entry: &config::Plugin, says: &str| {
            let error = source.read(&name, Some(entry), &trusted).unwrap_err();
            assert!(error.code == ErrorCode::Forbidden && error.message.contains(says), "{error}");
        };
        refused(&entry, "it is unsigned, not by one of sandbox.trusted_keys");
        assert!(
            Source::Embedded(embedded()[0].clone()).read(&embedded()[0].name.into(), None, &trusted).is_ok()
        );

        entry.may_be_unsigned = true;
        assert!(source.read(&name, Some(&entry), &trusted).is_ok());
        entry.may_be_unsigned = false;
        entry.sha256 = Some(Sha256::digest(tool()).into());
        assert!(source.read(&name, Some(&entry), &trusted).is_ok());
        entry.sha256 = Some([0; 32]);
        refused(&entry, "its entry wants 0000");
        assert!(source.read(&name, Some(&entry), &[]).is_err(), "pinned is pinned");
        entry.sha256 = None;

        let sign = |secret: &[u8; 32], manifest: &str| {
            fs::write(path.with_extension("toml"), manifest).unwrap();
            fs::write(signature_file(&path), signature::sign(secret, manifest.as_bytes())).unwrap();
        };
        let manifest = format!("sha256 = \"{}\"\n", hex(&Sha256::digest(tool())));
        sign(&secret, &manifest);
        assert_eq!(source.read(&name, Some(&entry), &trusted).unwrap().signer, Some(trusted[0]));
        sign(&stranger, &manifest);
        refused(&entry, "it is signed by ");
        assert!(
            source.read(&name, Some(&entry), &[]).is_ok(),
            "where nobody is trusted, nobody is asked for"
        );
        sign(&secret, "version = \"1\"\n");
        refused(&entry, "does not say the sha256");
        sign(&secret, &format!("sha256 = \"{}\"\n", "00".repeat(32)));
        refused(&entry, "its manifest is for 0000");
        sign(&secret, &manifest);
        fs::write(path.with_extension("toml"), format!("# more\n{manifest}")).unwrap();
        let error = source.read(&name, Some(&entry), &[]).unwrap_err();
        assert!(error.message.contains("not one of this manifest"), "{error}");
    }

    #[test]
    fn files_outside_the_folder_are_out_of_reach() {
        let home = tempfile::tempdir().unwrap();
        let folder = home.path().join("plugins");
        fs::create_dir(&folder).unwrap();
        fs::write(home.path().join("secret.wasm"), tool()).unwrap();
        symlink(home.path().join("secret.wasm"), folder.join("link.wasm")).unwrap();
        symlink(home.path(), folder.join("up")).unwrap();
        fs::create_dir(folder.join("folder.wasm")).unwrap();
        let absolute = home.path().join("secret.wasm").display().to_string();
        for (path, code) in [
            ("../secret.wasm", ErrorCode::Forbidden),
            ("../nothing.wasm", ErrorCode::Forbidden),
            ("x/../../secret.wasm", ErrorCode::Forbidden),
            ("/etc/shadow", ErrorCode::Forbidden),
            ("/nothing/there", ErrorCode::Forbidden),
            (absolute.as_str(), ErrorCode::Forbidden),
            ("link.wasm", ErrorCode::Forbidden),
            ("up/secret.wasm", ErrorCode::Forbidden),
            ("", ErrorCode::Forbidden),
            (".", ErrorCode::Forbidden),
            ("nothing.wasm", ErrorCode::NotFound),
            ("İİİİ.wasm", ErrorCode::NotFound),
            ("nul\0.wasm", ErrorCode::NotFound),
            ("folder.wasm", ErrorCode::InvalidRequest),
        ] {
            let source = Source::Loaded { folder: folder.clone(), path: path.to_owned() };
            let error = source.read(&"x".into(), None, &[]).unwrap_err();
            assert_eq!(error.code, code, "{path}: {error}");
        }
    }

    #[test]
    fn names_are_what_every_provider_takes() {
        for name in ["", "İİİİ", "a b", "a:b", "../a", &"a".repeat(65)] {
            assert_eq!(check_name(&name.into()).unwrap_err().code, ErrorCode::InvalidRequest, "{name}");
        }
        for name in ["echo", "my_tool-2", &"a".repeat(64)] {
            check_name(&name.into()).unwrap();
        }
    }
}
