//! What a loaded plugin may do: its grants, taken apart by kind, and the secrets that they name.

use std::collections::BTreeMap;

use super::{Capability, GrantedSecret, HostFunction, HttpGrant, PluginSecret, StoreGrant, redact};

/// What a loaded plugin may do. What is not in it is denied.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rights {
    /// Functions of the host that it may call.
    pub functions: Vec<HostFunction>,
    /// Where it may send HTTP requests.
    pub http: Vec<HttpGrant>,
    /// What its requests carry.
    pub secrets: Vec<GrantedSecret>,
    /// Where it may keep values.
    pub stores: Vec<StoreGrant>,
}

impl Rights {
    /// Those of a plugin with these grants. `secrets` are those that the grants name; without its secret a
    /// grant gives nothing.
    pub fn new(grants: &[Capability], secrets: &BTreeMap<String, PluginSecret>) -> Self {
        let mut rights = Self::default();
        for grant in grants {
            match grant {
                Capability::HostFunction(function) => rights.functions.push(*function),
                Capability::Http(grant) => rights.http.push(grant.clone()),
                Capability::Secret(grant) => {
                    let secret = secrets.get(&grant.name).cloned();
                    let granted = secret.map(|secret| GrantedSecret { grant: grant.clone(), secret });
                    rights.secrets.extend(granted);
                }
                Capability::Store(grant) => rights.stores.push(grant.clone()),
            }
        }
        rights
    }

    /// Whether it may call this function of the host.
    pub fn may_call(&self, function: HostFunction) -> bool {
        self.functions.contains(&function)
    }

    /// A text as the guest may see it: without its secrets.
    pub fn shown(&self, text: String) -> String {
        match redact(&self.secrets, text.as_bytes()) {
            std::borrow::Cow::Borrowed(_) => text,
            std::borrow::Cow::Owned(shown) => String::from_utf8_lossy(&shown).into_owned(),
        }
    }
}
