"""The system calls that a sandbox may use: a list of what programs need; all others fail with EPERM.

Left out on purpose: mounting, namespaces, tracing and other processes' memory, kernel modules, keyrings, BPF, clocks,
swap, reboot, io_uring, userfaultfd, file handles, performance events, and the calls of other architectures; inotify,
of which a host has 128 for all its containers (`tail -f` polls without); and changing the limits of another process,
for process 1 is one.

Not here: capabilities and masked paths (spec.py).
Source: Linux man-pages, syscalls(2), read call by call.
"""

import platform
from typing import Any

EPERM, ENOSYS = 1, 38
NEW_NAMESPACES = 0x7E020000
"""The CLONE_NEW… flags: cgroup, uts, ipc, user, pid, net, mount."""
ARCHITECTURES = {"x86_64": "SCMP_ARCH_X86_64", "aarch64": "SCMP_ARCH_AARCH64"}

ALLOWED = """
accept accept4 access alarm arch_prctl bind brk capget capset chdir chmod chown chroot clock_getres clock_gettime
clock_nanosleep close close_range connect copy_file_range creat dup dup2 dup3 epoll_create epoll_create1 epoll_ctl
epoll_ctl_old epoll_pwait epoll_pwait2 epoll_wait epoll_wait_old eventfd eventfd2 execve execveat exit exit_group
faccessat faccessat2 fadvise64 fallocate fchdir fchmod fchmodat fchmodat2 fchown fchownat fcntl fdatasync fgetxattr
flistxattr flock fork fremovexattr fsetxattr fstat fstatfs fsync ftruncate futex futex_waitv futimesat get_robust_list
get_thread_area getcpu getcwd getdents getdents64 getegid geteuid getgid getgroups getitimer getpeername getpgid
getpgrp getpid getppid getpriority getrandom getresgid getresuid getrlimit getrusage getsid getsockname getsockopt
gettid gettimeofday getuid getxattr io_cancel io_destroy io_getevents io_pgetevents io_setup io_submit ioctl
ioprio_get ioprio_set kill landlock_add_rule landlock_create_ruleset landlock_restrict_self lchown lgetxattr link
linkat listen listxattr llistxattr lremovexattr lseek lsetxattr lstat madvise membarrier memfd_create mincore mkdir
mkdirat mknod mknodat mlock mlock2 mlockall mmap mprotect mq_getsetattr mq_notify mq_open mq_timedreceive mq_timedsend
mq_unlink mremap msgctl msgget msgrcv msgsnd msync munlock munlockall munmap nanosleep newfstatat open openat openat2
pause pidfd_open pidfd_send_signal pipe pipe2 pkey_alloc pkey_free pkey_mprotect poll ppoll prctl pread64 preadv
preadv2 pselect6 pwrite64 pwritev pwritev2 read readahead readlink readlinkat readv recvfrom recvmmsg recvmsg
remap_file_pages removexattr rename renameat renameat2 restart_syscall rmdir rseq rt_sigaction rt_sigpending
rt_sigprocmask rt_sigqueueinfo rt_sigreturn rt_sigsuspend rt_sigtimedwait rt_tgsigqueueinfo sched_get_priority_max
sched_get_priority_min sched_getaffinity sched_getattr sched_getparam sched_getscheduler sched_rr_get_interval
sched_setaffinity sched_setattr sched_setparam sched_setscheduler sched_yield seccomp select semctl semget semop
semtimedop sendfile sendmmsg sendmsg sendto set_robust_list set_thread_area set_tid_address setfsgid setfsuid setgid
setgroups setitimer setpgid setpriority setregid setresgid setresuid setreuid setrlimit setsid setsockopt setuid
setxattr shmat shmctl shmdt shmget shutdown sigaltstack signalfd signalfd4 socketpair splice stat statfs statx symlink
symlinkat sync sync_file_range syncfs sysinfo tee tgkill time timer_create timer_delete timer_getoverrun timer_gettime
timer_settime timerfd_create timerfd_gettime timerfd_settime times tkill truncate umask uname unlink unlinkat utime
utimensat utimes vfork vmsplice wait4 waitid write writev
"""
PACKET = 17
"""The first address family beyond unix, IPv4, IPv6 and netlink sockets; those are all that programs here need."""


def profile(machine: str = "") -> dict[str, Any]:
    """The filter of a sandbox on this machine, in the form of the OCI specification.

    Args:
        machine: Its architecture; empty: this one's.
    """
    name = machine or platform.machine()
    known = ARCHITECTURES.get(name)
    return {
        "defaultAction": "SCMP_ACT_ERRNO",
        "defaultErrnoRet": EPERM,
        **({"architectures": [known]} if known else {}),
        "syscalls": [
            {"names": ALLOWED.split(), "action": "SCMP_ACT_ALLOW"},
            {
                "names": ["clone"],
                "action": "SCMP_ACT_ALLOW",
                "args": [{"index": 0, "value": NEW_NAMESPACES, "valueTwo": 0, "op": "SCMP_CMP_MASKED_EQ"}],
            },
            # Its flags stand in memory, where no filter can read them; libc falls back to clone.
            {"names": ["clone3"], "action": "SCMP_ACT_ERRNO", "errnoRet": ENOSYS},
            {"names": ["inotify_init", "inotify_init1"], "action": "SCMP_ACT_ERRNO", "errnoRet": ENOSYS},
            {
                "names": ["prlimit64"],
                "action": "SCMP_ACT_ALLOW",
                "args": [{"index": 0, "value": 0, "valueTwo": 0, "op": "SCMP_CMP_EQ"}],
            },
            {
                "names": ["socket"],
                "action": "SCMP_ACT_ALLOW",
                "args": [{"index": 0, "value": PACKET, "op": "SCMP_CMP_LT"}],
            },
            {
                "names": ["personality"],
                "action": "SCMP_ACT_ALLOW",
                "args": [{"index": 0, "value": 0xFFFFFFFF, "op": "SCMP_CMP_EQ"}],
            },
            {
                "names": ["personality"],
                "action": "SCMP_ACT_ALLOW",
                "args": [{"index": 0, "value": 0, "op": "SCMP_CMP_EQ"}],
            },
        ],
    }
