"""What many tests share: a tiny job, ranks as forked processes, and a killer at system calls."""
