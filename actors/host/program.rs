//! The pages of the program itself.
//!
//! A start runs through much of it that is not run again, and the kernel maps sixteen pages around each that
//! is touched: two thirds of what is resident then. They are nobody's memory, but as long as they are mapped
//! they are the last that the kernel gives to others. What is needed again is mapped again when it is,
//! from the page cache: a thousandth of a millisecond each time.

/// Lets go of all of them.
pub fn let_go() {
    #[cfg(all(target_os = "linux", target_pointer_width = "64"))]
    // SAFETY: the function is called for each loaded object and keeps nothing of what it is given.
    unsafe {
        libc::dl_iterate_phdr(Some(let_go_of), std::ptr::null_mut());
    }
}

/// Lets go of the pages of an object that are as they are in its file.
#[cfg(all(target_os = "linux", target_pointer_width = "64"))]
unsafe extern "C" fn let_go_of(
    object: *mut libc::dl_phdr_info,
    _: libc::size_t,
    _: *mut libc::c_void,
) -> libc::c_int {
    // SAFETY: it takes no pointer.
    let page_bytes = u64::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(4096);
    // SAFETY: the loader describes an object that is loaded, by as many headers as it says.
    let (base, headers) = unsafe {
        let object = &*object;
        (object.dlpi_addr, std::slice::from_raw_parts(object.dlpi_phdr, usize::from(object.dlpi_phnum)))
    };
    // What may be written to may be no more what the file says.
    let is_as_in_the_file =
        |header: &&libc::Elf64_Phdr| header.p_type == libc::PT_LOAD && header.p_flags & libc::PF_W == 0;
    for header in headers.iter().filter(is_as_in_the_file) {
        let begin = (base + header.p_vaddr) / page_bytes * page_bytes;
        let bytes = base + header.p_vaddr + header.p_filesz - begin;
        let Ok(bytes) = usize::try_from(bytes) else { continue };
        // SAFETY: the pages are mapped from a file, are never written to and read the same when they are
        // mapped again.
        unsafe {
            libc::madvise(std::ptr::with_exposed_provenance_mut(begin as usize), bytes, libc::MADV_DONTNEED);
        }
    }
    // The first is the program, the others are its libraries.
    0
}

#[cfg(all(test, target_os = "linux", target_pointer_width = "64"))]
mod tests {
    use super::*;

    #[test]
    fn the_program_runs_on_without_its_pages() {
        let threads: Vec<_> = (0..4)
            .map(|at: usize| {
                std::thread::spawn(move || (0..100).map(|n| format!("{}", n * at)).collect::<String>())
            })
            .collect();
        (0..10).for_each(|_| let_go());
        for (at, thread) in threads.into_iter().enumerate() {
            let wanted: String = (0..100).map(|n| (n * at).to_string()).collect();
            assert_eq!(thread.join().unwrap(), wanted);
        }
    }
}
