//! What is too large for a message is in parts, which are there as a whole or named.

use std::time::Duration;

use bytes::Bytes;
use clawmux_actors::cluster::engine::NoBlob;
use clawmux_core::cluster::node::NodeName;
use clawmux_core::replica::Blob;
use clawmux_core::replica::blob::BLOB_BYTES_MAX;
use futures::StreamExt as _;
use futures::future::join;
use tokio::time::sleep;

use super::servers::{SYNCS, Server};
use super::{open, run};

fn content(bytes: usize) -> Bytes {
    (0..bytes).map(|nth| (nth * 7 % 251) as u8).collect()
}

#[test]
fn two_who_write_one_blob_at_once_write_the_same() {
    let Some(server) = Server::start(SYNCS) else { return };
    run(async {
        let (one, two) = join(open(&server.settings()), open(&server.settings())).await;
        let content = content(5_000_001);
        let (first, second) = join(one.put_blob(&content, None), two.put_blob(&content, None)).await;
        let blob = first.unwrap();
        assert_eq!((Some(blob), blob), (second.ok(), Blob::of(&content)));
        assert_eq!(
            join(one.read_blob(&blob), two.read_blob(&blob)).await,
            (Ok(content.clone()), Ok(content.clone()))
        );
        // Once more, and it is the same still.
        assert_eq!(two.put_blob(&content, None).await, Ok(blob));
        assert_eq!(one.read_blob(&blob).await, Ok(content));
        one.remove_blob(&blob).await.unwrap();
        let gone = two.read_blob(&blob).await.unwrap_err();
        assert!(matches!(&gone, NoBlob::Damaged(why) if why.contains("part 1 of 10 is missing")), "{gone:?}");
        let huge = Bytes::from(vec![7; BLOB_BYTES_MAX + 1]);
        assert!(one.put_blob(&huge, None).await.unwrap_err().contains("are the most"));
    });
}

#[test]
fn what_is_kept_for_a_while_goes_by_itself() {
    let Some(server) = Server::start(SYNCS) else { return };
    run(async {
        let engine = open(&server.settings()).await;
        let content = content(1_500_000);
        let blob = engine.put_blob(&content, Some(Duration::from_secs(1))).await.unwrap();
        while engine.read_blob(&blob).await.is_ok() {
            sleep(Duration::from_millis(100)).await;
        }
    });
}

#[test]
fn a_question_and_an_answer_may_be_larger_than_a_message() {
    let Some(server) = Server::start(SYNCS) else { return };
    run(async {
        let (one, two) = join(open(&server.settings()), open(&server.settings())).await;
        let node = NodeName::new("two");
        let (small, large) = (content(1_000), content(4_000_000));
        let mut questions = Box::pin(two.questions(&node).await.unwrap());
        let answers = async {
            for expected in [&large, &small, &large] {
                let question = questions.next().await.unwrap();
                assert_eq!(question.asked.as_ref(), Ok(expected));
                two.answer(question.reply, question.asked.unwrap()).await.unwrap();
            }
        };
        let asks = async {
            for asked in [&large, &small, &large] {
                let answer = one.ask(&node, asked.clone(), Duration::from_secs(10)).await;
                assert_eq!(answer.as_ref(), Ok(asked));
            }
        };
        join(answers, asks).await;
    });
}
