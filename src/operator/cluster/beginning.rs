//! `clawmux cluster init` and `rebuild`: what needs the servers.

use std::path::Path;

use clawmux_actors::cluster::beginning::{self, Begun, Loss, Step};
use clawmux_actors::cluster::contradiction::{self, Verdict};
use clawmux_actors::cluster::engine::{EngineSettings, Site, Unusable};
use clawmux_core::config;
use clawmux_core::error::Error;
use serde_json::{Value, json};

use super::progress::{Progress, share};
use crate::answer::Members as _;
use crate::cli::{Global, Rebuild};
use crate::exit::{FAILED, Failure};
use crate::operator::amount::{counted, file_size, grouped};
use crate::operator::{alone, print};
use crate::question;
use crate::settings::Settings;
use crate::terminal::tell;

/// Runs `cluster init`.
///
/// # Errors
/// Status 1 if it can't be done.
pub(super) fn init(global: &Global, settings: &Settings, cluster: &config::Cluster) -> Result<(), Failure> {
    let _claim = alone::claim(&settings.home)?;
    let store = &settings.config.store.path;
    let mut progress = Progress::new();
    let begun = actix::System::new().block_on(async {
        let site = connect(cluster).await?;
        Ok::<_, Failure>(beginning::init(&site, store, &mut |step| shows(&mut progress, &step)).await?)
    });
    progress.end();
    let answer = told(&begun?, settings, cluster);
    print::answer(global, &answer, |answer| {
        format!(
            "the cluster {:?} begins with the store of this home: {}, {}, {}\nstart the daemon here, then those of the \
             other nodes, whose stores must be empty",
            answer.text("name"),
            file_size(answer.number("bytes")),
            counted(answer.number("sessions"), "session"),
            counted(answer.number("runs"), "run"),
        )
    });
    Ok(())
}

/// Runs `cluster rebuild`.
///
/// # Errors
/// Status 1 if it can't be done, the log contradicts the store or the answer is no; 2 if it has to ask and there is no
/// terminal.
pub(super) fn rebuild(
    global: &Global,
    settings: &Settings,
    cluster: &config::Cluster,
    options: &Rebuild,
) -> Result<(), Failure> {
    let _claim = alone::claim(&settings.home)?;
    let store = &settings.config.store.path;
    let system = actix::System::new();
    let mut progress = Progress::new();
    let looked = system.block_on(async {
        let site = connect(cluster).await?;
        let loss = beginning::look_at_loss(&site, store).await?;
        let mut told = |done, of| progress.show(share("compared", done, of));
        Ok::<_, Failure>((loss, contradiction::look(&site, store, &mut told).await?))
    });
    progress.end();
    let (loss, verdict) = looked?;
    if let Verdict::Contradicts(why) = &verdict
        && !options.force
    {
        return Err(contradicted(why, store));
    }
    if !options.agreed.yes {
        let what = described(&loss, &verdict, cluster);
        let option = "Give --yes to rebuild it. Nothing was changed";
        question::agree(&what, "Rebuild the cluster?", option, "nothing was changed")?;
    }
    let begun = system.block_on(async {
        // The answer may have taken long. What is not known of the servers was told.
        let site = Site::connect(&EngineSettings::from(cluster)).await.map_err(unusable)?;
        Ok::<_, Failure>(
            beginning::rebuild(&site, store, &loss, &mut |step| shows(&mut progress, &step)).await?,
        )
    });
    progress.end();
    let begun = begun?;
    let mut answer = told(&begun, settings, cluster);
    answer["lost_records"] = json!(loss.records());
    print::answer(global, &answer, |answer| {
        format!(
            "the cluster {:?} has a new log (generation {}), which begins with the store of this home: {}, {}, {}\nthe \
             store as it was is kept as {}\nstart the daemons of the cluster: they take the new base",
            answer.text("name"),
            answer.number("generation"),
            file_size(answer.number("bytes")),
            counted(answer.number("sessions"), "session"),
            counted(answer.number("runs"), "run"),
            answer.text("kept"),
        )
    });
    Ok(())
}

/// Reaches the servers. Where one does not say whether it syncs, that is told.
///
/// # Errors
/// Status 1 where they can't be used.
pub(super) async fn connect(cluster: &config::Cluster) -> Result<Site, Failure> {
    let site = Site::reach(&EngineSettings::from(cluster)).await.map_err(unusable)?;
    if let Some(silent) = site.syncs().await.map_err(unusable)? {
        tell(&format!(
            "warning: it is not known of all NATS servers whether they sync what they acknowledge: {silent}. See to these \
             servers, or to cluster.monitor"
        ));
    }
    Ok(site)
}

fn unusable(unusable: Unusable) -> Failure {
    Failure::new(FAILED, unusable.with_advice())
}

fn told(begun: &Begun, settings: &Settings, cluster: &config::Cluster) -> Value {
    let base = &begun.base;
    json!({
        "name": cluster.name,
        "cluster": base.cluster.as_str(),
        "generation": base.generation,
        "bytes": base.bytes,
        "sessions": begun.report.sessions,
        "runs": begun.report.runs,
        "store": settings.config.store.path.display().to_string(),
        "kept": begun.kept.as_ref().map(|kept| kept.display().to_string()),
    })
}

/// That this store is not to be begun with.
fn contradicted(why: &str, store: &Path) -> Failure {
    let why = format!(
        "{why}. Nothing was changed. Where other nodes follow the log, move {}* away and start the daemon, which takes \
         its store from the log. Where this store is to count, whatever the log says, give --force",
        store.display()
    );
    Failure::new(FAILED, why)
}

/// What is lost, for people.
fn described(loss: &Loss, verdict: &Verdict, cluster: &config::Cluster) -> String {
    let lost = match loss.records() {
        Some(0) => "The log on the servers has no record that this store lacks.".to_owned(),
        Some(records) => format!(
            "The log on the servers has {} that this store lacks: what they say is lost.",
            counted(records, "record")
        ),
        None => "The servers do not have the log any more: what was written after that is lost.".to_owned(),
    };
    let doubt = match (verdict, loss.last) {
        (Verdict::Contradicts(why), _) => format!("\nThe log contradicts this store: {why}."),
        (Verdict::Silent(why), Some(_)) => {
            format!("\nWhether this store is what the log says can't be known: {why}.")
        }
        (Verdict::Silent(_), None) | (Verdict::Fits, _) => String::new(),
    };
    format!(
        "A new log of the cluster {:?} would begin with the store of this home, which has the present one up to record \
         {}.{doubt}\n{lost}\nThe streams of the present log are deleted. Nodes whose stores have more than this one can't join \
         with them.",
        cluster.name,
        grouped(loss.ours.applied)
    )
}

/// Shows a step, but for those that are soon over.
fn shows(progress: &mut Progress, step: &Step) -> Result<(), Error> {
    match step {
        Step::Copied(_) => progress.show("the store is copied".to_owned()),
        Step::Published(done, of) => progress.show(share("published", *done, *of)),
        Step::Planned(_) | Step::Made | Step::Committed | Step::Placed => {}
    }
    Ok(())
}
