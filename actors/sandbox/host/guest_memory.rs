//! Reading and writing the memory that a guest shares with its host, whatever the guest has made of it.
//!
//! The runtime keeps the sizes of allocated blocks in that very memory, where a guest can overwrite them,
//! and hands out slices of whatever size it finds there: beyond the memory's end, touching one ends the
//! process. So no slice is ever touched here. The operating system copies it through a pipe, and refuses
//! where there is no memory.

use std::cell::RefCell;
use std::os::fd::OwnedFd;

use extism::{CurrentPlugin, Error};
use rustix::io::{Errno, read, write};
use rustix::pipe::{PipeFlags, pipe_with};

/// A guest's memory has 32-bit addresses, and the runtime reserves all of them: what lies within is the
/// guest's or nobody's.
const ADDRESSES: u64 = 1 << 32;

/// The bytes behind a handle that a guest hands over for good, which is then free; none where there is
/// nothing.
///
/// # Errors
/// Where there is no such handle, it has more than `bytes_max`, or is not in the guest's memory.
pub(super) fn take(guest: &mut CurrentPlugin, handle: u64, bytes_max: usize) -> Result<Vec<u8>, Error> {
    let bytes = load(guest, handle, |length| match length <= bytes_max {
        true => Ok(length),
        false => Err(Error::msg(format!("it hands over {length} bytes (limit {bytes_max})"))),
    })?;
    free(guest, handle)?;
    Ok(bytes)
}

/// The first bytes behind a handle, at most so many.
///
/// # Errors
/// As [`take`]'s.
pub(super) fn load_start(guest: &mut CurrentPlugin, handle: u64, bytes_max: usize) -> Result<Vec<u8>, Error> {
    load(guest, handle, |length| Ok(length.min(bytes_max)))
}

/// The handle is free.
///
/// # Errors
/// Where the guest has broken its memory.
pub(super) fn free(guest: &mut CurrentPlugin, handle: u64) -> Result<(), Error> {
    match guest.memory_handle(handle) {
        Some(handle) if handle.offset() > 0 => guest.memory_free(handle),
        _ => Ok(()),
    }
}

/// As many of the bytes behind a handle as are `wanted` of all there are.
fn load(
    guest: &mut CurrentPlugin,
    handle: u64,
    wanted: impl FnOnce(usize) -> Result<usize, Error>,
) -> Result<Vec<u8>, Error> {
    let Some(handle) = guest.memory_handle(handle) else {
        return Err(Error::msg(format!("{handle} is no handle of memory")));
    };
    let wanted = wanted(handle.len())?;
    if wanted == 0 {
        return Ok(Vec::new());
    }
    check_addresses(handle.offset(), handle.len())?;
    let mut bytes = vec![0; wanted];
    copy(guest.memory_bytes(handle)?, &mut bytes)?;
    Ok(bytes)
}

/// Hands bytes over to a guest: the offset of the handle, 0 for no bytes.
///
/// # Errors
/// Where the guest has no room for them.
pub(super) fn store(guest: &mut CurrentPlugin, bytes: &[u8]) -> Result<u64, Error> {
    let handle = guest.memory_alloc(bytes.len() as u64)?;
    if bytes.is_empty() {
        return Ok(0);
    }
    check_addresses(handle.offset(), handle.len())?;
    copy(bytes, guest.memory_bytes_mut(handle)?)?;
    Ok(handle.offset())
}

fn check_addresses(offset: u64, length: usize) -> Result<(), Error> {
    match offset.checked_add(length as u64) {
        Some(end) if end <= ADDRESSES => Ok(()),
        _ => Err(outside()),
    }
}

fn outside() -> Error {
    Error::msg("the handle is not in the guest's memory")
}

thread_local! {
    static PIPE: RefCell<Option<(OwnedFd, OwnedFd)>> = const { RefCell::new(None) };
}

/// Copies as many bytes as both have, without touching what may not be there.
fn copy(from: &[u8], to: &mut [u8]) -> Result<(), Error> {
    PIPE.with_borrow_mut(|kept| {
        // What was cut off leaves bytes in its pipe: only one that has delivered all it was given is kept.
        let (output, input) = match kept.take() {
            Some(pipe) => pipe,
            None => pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)
                .map_err(|error| Error::msg(format!("no pipe to the guest's memory: {error}")))?,
        };
        let cut_off = |error| match error {
            Errno::FAULT => outside(),
            error => Error::msg(format!("the guest's memory can't be copied: {error}")),
        };
        let length = from.len().min(to.len());
        let mut copied = 0;
        while copied < length {
            let end = copied + write(&input, &from[copied..length]).map_err(cut_off)?;
            while copied < end {
                copied += read(&output, &mut to[copied..end]).map_err(cut_off)?;
            }
        }
        *kept = Some((output, input));
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_than_a_pipe_holds_is_copied_whole() {
        for length in [1, 4096, 65_537, 3_000_000] {
            let from: Vec<u8> = (0..length).map(|at: u32| at.to_le_bytes()[at as usize % 3]).collect();
            let mut to = vec![0; from.len()];
            copy(&from, &mut to).unwrap();
            assert!(from == to, "{length}");
        }
    }

    #[test]
    fn no_handle_reaches_beyond_the_addresses_of_a_guest() {
        assert!(check_addresses(ADDRESSES - 1, 1).is_ok());
        for (offset, length) in [(ADDRESSES, 1), (ADDRESSES - 1, 2), (u64::MAX, 1), (0, usize::MAX)] {
            assert!(check_addresses(offset, length).is_err(), "{offset} {length}");
        }
    }
}
