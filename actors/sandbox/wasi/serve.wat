;; What guests find under the name wasi_snapshot_preview1; see mod.rs. Its memory is the guest's: the guest's own
;; declaration of a memory is turned into an import of this one.
;;
;; Results are the errno of WASI preview 1: 0 success, 8 badf, 28 inval, 52 nosys, 70 spipe, 76 notcapable.
(module
  (import "extism:host/env" "alloc" (func $alloc (param i64) (result i64)))
  (import "extism:host/env" "free" (func $free (param i64)))
  (import "extism:host/env" "store_u8" (func $store_u8 (param i64 i32)))
  (import "extism:host/env" "load_u8" (func $load_u8 (param i64) (result i32)))
  ;; Logs the bytes of a handle, which is free then.
  (import "clawmux:wasi" "write" (func $write (param i64 i64)))
  ;; Nanoseconds of a clock; -1 where it may not be read.
  (import "clawmux:wasi" "clock" (func $clock (param i64) (result i64)))
  ;; The handle of so many random bytes; 0 where there are none for this guest.
  (import "clawmux:wasi" "random" (func $random (param i64) (result i64)))
  ;; Ends the call.
  (import "clawmux:wasi" "exit" (func $exit (param i64)))

  (memory (export "memory") 1)

  ;; Whether it is standard input, output or error.
  (func $is_standard (param $fd i32) (result i32) (i32.lt_u (local.get $fd) (i32.const 3)))
  (func $standard_or_badf (param $fd i32) (result i32)
    (select (i32.const 0) (i32.const 8) (call $is_standard (local.get $fd))))

  ;; All pieces as one, at most 4096 bytes: a short write, after which callers go on.
  (func (export "fd_write") (param $fd i32) (param $pieces i32) (param $count i32) (param $written i32) (result i32)
    (local $end i32) (local $piece i32) (local $length i32) (local $handle i64) (local $from i32) (local $at i32)
    (if (i32.or (i32.eqz (local.get $fd)) (i32.eqz (call $is_standard (local.get $fd))))
      (then (return (i32.const 8))))
    (local.set $end (i32.add (local.get $pieces) (i32.mul (local.get $count) (i32.const 8))))
    (local.set $piece (local.get $pieces))
    (block $enough
      (loop $next
        (br_if $enough (i32.eq (local.get $piece) (local.get $end)))
        (local.set $at (i32.load offset=4 (local.get $piece)))
        (if (i32.gt_u (local.get $at) (i32.sub (i32.const 4096) (local.get $length)))
          (then
            (local.set $length (i32.const 4096))
            (br $enough)))
        (local.set $length (i32.add (local.get $length) (local.get $at)))
        (local.set $piece (i32.add (local.get $piece) (i32.const 8)))
        (br $next)))
    (i32.store (local.get $written) (local.get $length))
    (if (i32.eqz (local.get $length)) (then (return (i32.const 0))))
    (local.set $handle (call $alloc (i64.extend_i32_u (local.get $length))))
    (local.set $at (i32.const 0))
    (block $full
      (loop $next
        (local.set $from (i32.load (local.get $pieces)))
        (local.set $piece (i32.add (local.get $from) (i32.load offset=4 (local.get $pieces))))
        (loop $copy
          (br_if $full (i32.eq (local.get $at) (local.get $length)))
          (if (i32.ne (local.get $from) (local.get $piece))
            (then
              (call $store_u8
                (i64.add (local.get $handle) (i64.extend_i32_u (local.get $at)))
                (i32.load8_u (local.get $from)))
              (local.set $at (i32.add (local.get $at) (i32.const 1)))
              (local.set $from (i32.add (local.get $from) (i32.const 1)))
              (br $copy))))
        (local.set $pieces (i32.add (local.get $pieces) (i32.const 8)))
        (br $next)))
    (call $write (i64.extend_i32_u (local.get $fd)) (local.get $handle))
    (i32.const 0))

  ;; Standard input has come to its end.
  (func (export "fd_read") (param $fd i32) (param i32 i32) (param $read i32) (result i32)
    (if (local.get $fd) (then (return (i32.const 8))))
    (i32.store (local.get $read) (i32.const 0))
    (i32.const 0))

  (func (export "fd_close") (param $fd i32) (result i32) (call $standard_or_badf (local.get $fd)))
  (func (export "fd_datasync") (param $fd i32) (result i32) (call $standard_or_badf (local.get $fd)))
  (func (export "fd_sync") (param $fd i32) (result i32) (call $standard_or_badf (local.get $fd)))
  (func (export "fd_fdstat_set_flags") (param $fd i32) (param i32) (result i32)
    (call $standard_or_badf (local.get $fd)))
  ;; A character device, with the right to read from standard input and to write to the others.
  (func (export "fd_fdstat_get") (param $fd i32) (param $stat i32) (result i32)
    (if (i32.eqz (call $is_standard (local.get $fd))) (then (return (i32.const 8))))
    (i64.store (local.get $stat) (i64.const 2))
    (i64.store offset=8 (local.get $stat)
      (select (i64.const 64) (i64.const 2) (local.get $fd)))
    (i64.store offset=16 (local.get $stat) (i64.const 0))
    (i32.const 0))
  (func (export "fd_filestat_get") (param $fd i32) (param $stat i32) (result i32)
    (local $at i32)
    (if (i32.eqz (call $is_standard (local.get $fd))) (then (return (i32.const 8))))
    (loop $clear
      (i64.store (i32.add (local.get $stat) (local.get $at)) (i64.const 0))
      (local.set $at (i32.add (local.get $at) (i32.const 8)))
      (br_if $clear (i32.lt_u (local.get $at) (i32.const 64))))
    (i32.store8 offset=16 (local.get $stat) (i32.const 2))
    (i32.const 0))
  (func $no_seek (param $fd i32) (result i32)
    (select (i32.const 70) (i32.const 8) (call $is_standard (local.get $fd))))
  (func (export "fd_seek") (param $fd i32) (param i64 i32 i32) (result i32) (call $no_seek (local.get $fd)))
  (func (export "fd_tell") (param $fd i32) (param i32) (result i32) (call $no_seek (local.get $fd)))

  ;; No file is open, and none can be opened.
  (func (export "fd_prestat_get") (param i32 i32) (result i32) (i32.const 8))
  (func (export "fd_prestat_dir_name") (param i32 i32 i32) (result i32) (i32.const 8))
  (func (export "fd_advise") (param i32 i64 i64 i32) (result i32) (i32.const 8))
  (func (export "fd_allocate") (param i32 i64 i64) (result i32) (i32.const 8))
  (func (export "fd_fdstat_set_rights") (param i32 i64 i64) (result i32) (i32.const 8))
  (func (export "fd_filestat_set_size") (param i32 i64) (result i32) (i32.const 8))
  (func (export "fd_filestat_set_times") (param i32 i64 i64 i32) (result i32) (i32.const 8))
  (func (export "fd_pread") (param i32 i32 i32 i64 i32) (result i32) (i32.const 8))
  (func (export "fd_pwrite") (param i32 i32 i32 i64 i32) (result i32) (i32.const 8))
  (func (export "fd_readdir") (param i32 i32 i32 i64 i32) (result i32) (i32.const 8))
  (func (export "fd_renumber") (param i32 i32) (result i32) (i32.const 8))
  (func (export "path_create_directory") (param i32 i32 i32) (result i32) (i32.const 76))
  (func (export "path_filestat_get") (param i32 i32 i32 i32 i32) (result i32) (i32.const 76))
  (func (export "path_filestat_set_times") (param i32 i32 i32 i32 i64 i64 i32) (result i32) (i32.const 76))
  (func (export "path_link") (param i32 i32 i32 i32 i32 i32 i32) (result i32) (i32.const 76))
  (func (export "path_open") (param i32 i32 i32 i32 i32 i64 i64 i32 i32) (result i32) (i32.const 76))
  (func (export "path_readlink") (param i32 i32 i32 i32 i32 i32) (result i32) (i32.const 76))
  (func (export "path_remove_directory") (param i32 i32 i32) (result i32) (i32.const 76))
  (func (export "path_rename") (param i32 i32 i32 i32 i32 i32) (result i32) (i32.const 76))
  (func (export "path_symlink") (param i32 i32 i32 i32 i32) (result i32) (i32.const 76))
  (func (export "path_unlink_file") (param i32 i32 i32) (result i32) (i32.const 76))
  (func (export "sock_accept") (param i32 i32 i32) (result i32) (i32.const 76))
  (func (export "sock_recv") (param i32 i32 i32 i32 i32 i32) (result i32) (i32.const 76))
  (func (export "sock_send") (param i32 i32 i32 i32 i32) (result i32) (i32.const 76))
  (func (export "sock_shutdown") (param i32 i32) (result i32) (i32.const 76))

  ;; No arguments and no environment.
  (func $none (param $count i32) (param $bytes i32) (result i32)
    (i32.store (local.get $count) (i32.const 0))
    (i32.store (local.get $bytes) (i32.const 0))
    (i32.const 0))
  (export "args_sizes_get" (func $none))
  (export "environ_sizes_get" (func $none))
  (func (export "args_get") (param i32 i32) (result i32) (i32.const 0))
  (func (export "environ_get") (param i32 i32) (result i32) (i32.const 0))

  (func (export "clock_time_get") (param $id i32) (param i64) (param $time i32) (result i32)
    (local $now i64)
    (local.set $now (call $clock (i64.extend_i32_u (local.get $id))))
    (if (i64.lt_s (local.get $now) (i64.const 0)) (then (return (i32.const 76))))
    (i64.store (local.get $time) (local.get $now))
    (i32.const 0))
  ;; A millisecond.
  (func (export "clock_res_get") (param i32) (param $resolution i32) (result i32)
    (i64.store (local.get $resolution) (i64.const 1000000))
    (i32.const 0))
  (func (export "random_get") (param $to i32) (param $length i32) (result i32)
    (local $piece i32) (local $handle i64) (local $at i32)
    (loop $next
      (if (local.get $length)
        (then
          (local.set $piece
            (select (i32.const 4096) (local.get $length) (i32.gt_u (local.get $length) (i32.const 4096))))
          (local.set $handle (call $random (i64.extend_i32_u (local.get $piece))))
          (if (i64.eqz (local.get $handle)) (then (return (i32.const 76))))
          (local.set $at (i32.const 0))
          (loop $copy
            (i32.store8
              (i32.add (local.get $to) (local.get $at))
              (call $load_u8 (i64.add (local.get $handle) (i64.extend_i32_u (local.get $at)))))
            (local.set $at (i32.add (local.get $at) (i32.const 1)))
            (br_if $copy (i32.lt_u (local.get $at) (local.get $piece))))
          (call $free (local.get $handle))
          (local.set $to (i32.add (local.get $to) (local.get $piece)))
          (local.set $length (i32.sub (local.get $length) (local.get $piece)))
          (br $next))))
    (i32.const 0))

  ;; The first thing that is waited for has happened: nobody sleeps here.
  (func (export "poll_oneoff") (param $wanted i32) (param $event i32) (param $count i32) (param $events i32)
    (result i32)
    (if (i32.eqz (local.get $count)) (then (return (i32.const 28))))
    (i64.store (local.get $event) (i64.load (local.get $wanted)))
    (i64.store offset=8 (local.get $event) (i64.const 0))
    (i32.store8 offset=10 (local.get $event) (i32.load8_u offset=8 (local.get $wanted)))
    (i64.store offset=16 (local.get $event) (i64.const 0))
    (i64.store offset=24 (local.get $event) (i64.const 0))
    (i32.store (local.get $events) (i32.const 1))
    (i32.const 0))
  (func (export "sched_yield") (result i32) (i32.const 0))
  (func (export "proc_exit") (param $status i32) (call $exit (i64.extend_i32_u (local.get $status))))
  (func (export "proc_raise") (param i32) (result i32) (i32.const 52)))
