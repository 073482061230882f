//! What the shim recorded, and what a disk may hold of it after a power cut.
//!
//! The model: what was synced before the cut is there. Of what was not, each write is there or not,
//! whole or only some of its sectors, whatever was written after it. A name in the folder is there
//! once the folder was synced; of later changes of the folder the first so many are. A sync that
//! failed has synced nothing, and what it should have synced is never sure to be there, whatever is
//! synced later, until it is written again: the kernel takes it for written.

use std::collections::HashMap;
use std::path::Path;

use super::random::Random;

const SECTOR: usize = 512;

/// One entry; see `struct entry` in `disk.c`.
#[derive(Debug)]
enum Entry {
    Opened { inode: u64, made: bool, name: String },
    Written { inode: u64, at: usize, data: Vec<u8> },
    Cut { inode: u64, length: usize },
    Unlinked { name: String },
    Renamed { from: String, to: String },
    SyncBegins { inode: u64, number: u64 },
    SyncEnds { inode: u64, number: u64, failed: bool },
}

/// All that was recorded, in order.
pub struct Journal {
    entries: Vec<Entry>,
    /// Where each ends in the file.
    ends: Vec<u64>,
}

impl Journal {
    pub fn read(path: &Path) -> Self {
        let bytes = std::fs::read(path).expect("the journal is read");
        let (mut entries, mut ends, mut at) = (Vec::new(), Vec::new(), 0);
        while at < bytes.len() {
            let word = |index: usize| {
                let from = at + index * 8;
                u64::from_le_bytes(bytes[from..from + 8].try_into().expect("eight bytes"))
            };
            let (kind, inode, place, name_bytes, data_bytes) =
                (word(0), word(1), word(2), word(3) as usize, word(4) as usize);
            let name_at = at + 40;
            let data_at = name_at + name_bytes;
            let name = String::from_utf8(bytes[name_at..data_at].to_vec()).expect("a name");
            let data = || bytes[data_at..data_at + data_bytes].to_vec();
            let has_data = matches!(kind, 2 | 5);
            entries.push(match kind {
                1 => Entry::Opened { inode, made: place == 1, name },
                2 => Entry::Written { inode, at: place as usize, data: data() },
                3 => Entry::Cut { inode, length: place as usize },
                4 => Entry::Unlinked { name },
                5 => Entry::Renamed { from: name, to: String::from_utf8(data()).expect("a name") },
                6 => Entry::SyncBegins { inode, number: place },
                7 => Entry::SyncEnds { inode, number: place, failed: data_bytes == 1 },
                kind => panic!("no entry has kind {kind}"),
            });
            at = data_at + if has_data { data_bytes } else { 0 };
            ends.push(at as u64);
        }
        Self { entries, ends }
    }

    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// How many entries there were when the file had so many bytes, one that was being written
    /// included.
    pub fn at(&self, bytes: u64) -> usize {
        (self.ends.partition_point(|end| *end < bytes) + 1).min(self.len())
    }

    /// The figures: writes, syncs, and syncs that failed.
    pub fn count(&self) -> (usize, usize, usize) {
        let count = |is: fn(&Entry) -> bool| self.entries.iter().filter(|entry| is(entry)).count();
        (
            count(|entry| matches!(entry, Entry::Written { .. })),
            count(|entry| matches!(entry, Entry::SyncEnds { .. })),
            count(|entry| matches!(entry, Entry::SyncEnds { failed: true, .. })),
        )
    }
}

/// What becomes of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    /// Not synced yet.
    Waiting,
    /// A sync failed over it: no later sync says anything of it.
    Doubtful,
    /// On the disk.
    Sure,
}

#[derive(Debug)]
struct Change {
    fate: Fate,
    at: usize,
    /// None: the file is cut off here.
    data: Option<Vec<u8>>,
}

#[derive(Debug, Default)]
struct File {
    /// What all changes before `changes` made of it.
    base: Vec<u8>,
    changes: Vec<Change>,
    /// Syncs under way, and how many changes each covers, `let_go` included.
    syncs: HashMap<u64, usize>,
    /// How many changes went into `base`.
    let_go: usize,
}

#[derive(Clone, Debug)]
enum Naming {
    Link(String, usize),
    Unlink(String),
    Rename(String, String),
}

/// The disk at one point of the journal.
#[derive(Default)]
pub struct Disk {
    played: usize,
    files: Vec<File>,
    of_inode: HashMap<u64, usize>,
    /// What a sync of the folder has made sure.
    names: HashMap<String, usize>,
    naming: Vec<Naming>,
    naming_let_go: usize,
    folder_syncs: HashMap<u64, usize>,
}

/// What is kept of what is not sure.
#[derive(Clone, Copy, Debug)]
pub enum Kept {
    Nothing,
    Everything,
    /// Each write by chance.
    Some,
    /// Each sector of each write by chance.
    Torn,
    /// All but the last writes, one of them torn.
    Beginning,
}

impl Disk {
    /// Plays the journal on up to so many entries.
    pub fn play(&mut self, journal: &Journal, entries: usize) {
        for entry in &journal.entries[self.played..entries] {
            self.take(entry);
        }
        self.played = entries;
    }

    fn take(&mut self, entry: &Entry) {
        match entry {
            Entry::Opened { inode, made, name } => {
                if *made || !self.of_inode.contains_key(inode) {
                    assert!(*made, "{name} was there before the journal began");
                    self.of_inode.insert(*inode, self.files.len());
                    self.naming.push(Naming::Link(name.clone(), self.files.len()));
                    self.files.push(File::default());
                }
            }
            Entry::Written { inode, at, data } => self.change(*inode, *at, Some(data.clone())),
            Entry::Cut { inode, length } => self.change(*inode, *length, None),
            Entry::Unlinked { name } => self.naming.push(Naming::Unlink(name.clone())),
            Entry::Renamed { from, to } => self.naming.push(Naming::Rename(from.clone(), to.clone())),
            Entry::SyncBegins { inode: 0, number } => {
                self.folder_syncs.insert(*number, self.naming_let_go + self.naming.len());
            }
            Entry::SyncEnds { inode: 0, number, failed } => {
                let covers = self.folder_syncs.remove(number).expect("it began");
                if !failed && covers > self.naming_let_go {
                    for naming in self.naming.drain(..covers - self.naming_let_go) {
                        rename(&mut self.names, &naming);
                    }
                    self.naming_let_go = covers;
                }
            }
            Entry::SyncBegins { inode, number } => {
                let file = self.file(*inode);
                let covers = file.let_go + file.changes.len();
                file.syncs.insert(*number, covers);
            }
            Entry::SyncEnds { inode, number, failed } => self.file(*inode).synced(*number, *failed),
        }
    }

    fn file(&mut self, inode: u64) -> &mut File {
        &mut self.files[self.of_inode[&inode]]
    }

    fn change(&mut self, inode: u64, at: usize, data: Option<Vec<u8>>) {
        self.file(inode).changes.push(Change { fate: Fate::Waiting, at, data });
    }

    /// How many writes are not sure to be there.
    pub fn unsure(&self) -> usize {
        self.files.iter().flat_map(|file| &file.changes).filter(|change| change.fate != Fate::Sure).count()
    }

    /// What is there after a power cut now, in this folder.
    pub fn cut_power(&self, kept: Kept, random: &mut Random, folder: &Path) {
        let mut names = self.names.clone();
        let some = match kept {
            Kept::Nothing => 0,
            Kept::Everything => self.naming.len(),
            _ => random.below(self.naming.len() + 1),
        };
        for naming in &self.naming[..some] {
            rename(&mut names, naming);
        }
        for (name, file) in names {
            std::fs::write(folder.join(name), self.files[file].left(kept, random)).expect("it is written");
        }
    }
}

fn rename(names: &mut HashMap<String, usize>, naming: &Naming) {
    match naming {
        Naming::Link(name, file) => drop(names.insert(name.clone(), *file)),
        Naming::Unlink(name) => drop(names.remove(name)),
        Naming::Rename(from, to) => {
            if let Some(file) = names.remove(from) {
                names.insert(to.clone(), file);
            }
        }
    }
}

impl File {
    fn synced(&mut self, number: u64, failed: bool) {
        let covers = self.syncs.remove(&number).expect("it began").saturating_sub(self.let_go);
        for change in self.changes.iter_mut().take(covers).filter(|change| change.fate == Fate::Waiting) {
            change.fate = if failed { Fate::Doubtful } else { Fate::Sure };
        }
        // A doubtful write over which a sure one went is of no account any more.
        let mut over = Vec::<(usize, usize)>::new();
        let mut index = self.changes.len();
        while index > 0 {
            index -= 1;
            let change = &self.changes[index];
            let Some(data) = &change.data else { continue };
            let span = (change.at, change.at + data.len());
            match change.fate {
                Fate::Sure => over.push(span),
                Fate::Doubtful if over.iter().any(|(from, to)| *from <= span.0 && span.1 <= *to) => {
                    self.changes[index].fate = Fate::Sure;
                }
                _ => {}
            }
        }
        // What nothing unsure comes before can be put together.
        let sure = self.changes.iter().take_while(|change| change.fate == Fate::Sure).count();
        for change in self.changes.drain(..sure) {
            apply(&mut self.base, change.at, change.data.as_deref());
        }
        // Syncs that still run cover fewer of what is left.
        self.let_go += sure;
    }

    fn left(&self, kept: Kept, random: &mut Random) -> Vec<u8> {
        let mut content = self.base.clone();
        let unsure = self.changes.iter().filter(|change| change.fate != Fate::Sure).count();
        let beginning = random.below(unsure + 1);
        let mut seen = 0;
        for change in &self.changes {
            let mut whole = change.fate == Fate::Sure;
            let mut torn = false;
            if !whole {
                match kept {
                    Kept::Nothing => continue,
                    Kept::Everything => whole = true,
                    Kept::Some => whole = random.below(2) == 0,
                    Kept::Torn => torn = true,
                    Kept::Beginning => {
                        whole = seen < beginning;
                        torn = seen == beginning;
                    }
                }
                seen += 1;
            }
            match &change.data {
                data if whole => apply(&mut content, change.at, data.as_deref()),
                Some(data) if torn => {
                    let mut from = 0;
                    while from < data.len() {
                        let to = ((change.at + from) / SECTOR * SECTOR + SECTOR - change.at).min(data.len());
                        if random.below(2) == 0 {
                            apply(&mut content, change.at + from, Some(&data[from..to]));
                        }
                        from = to;
                    }
                }
                _ => {}
            }
        }
        content
    }
}

fn apply(content: &mut Vec<u8>, at: usize, data: Option<&[u8]>) {
    let Some(data) = data else { return content.resize(at, 0) };
    if content.len() < at + data.len() {
        content.resize(at + data.len(), 0);
    }
    content[at..at + data.len()].copy_from_slice(data);
}
