//! Gives memory back to the operating system.
//!
//! The allocator of glibc keeps what was freed below something that is still in use: after two
//! thousand strangers with a full buffer each the process stayed at 300 MB for good, all but 50 of
//! it free. Where the allocator is another one, it is left to itself.

/// Has the allocator give back what is free, on a thread of its own.
pub(crate) fn give_back() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    {
        let begun = crate::clock::now();
        // Ends by itself, and nobody waits for it.
        drop(tokio::task::spawn_blocking(move || {
            // SAFETY: it takes no pointer, and takes the allocator's own locks.
            let gave = unsafe { libc::malloc_trim(0) } != 0;
            let took_ms = u64::try_from(crate::clock::now().since(begun).as_millis()).unwrap_or(u64::MAX);
            tracing::debug!(gave, took_ms, "free memory given back");
        }));
    }
}
