//! The table of functions, and the constants.

use std::ffi::c_int;

use magnus::{Error, Module, RModule, Ruby, function, method};
use rb_sys::VALUE;

use crate::guard::guard;
use crate::{
    call, clients, datagrams, descriptors, extras, files, processes, properties, proxies, release, run, servers,
    socket_options, streams, timers, tls, tuning,
};

/// Defines functions of the module. Each is `name = path(types)`, and raises a RuntimeError if it panics.
macro_rules! functions {
    ($module:expr, $($name:literal = $path:path [$($argument:ident: $type:ty),*] $arity:tt;)*) => {$({
        #[allow(unused_variables, clippy::too_many_arguments, reason = "the table decides")]
        fn guarded($($argument: $type),*) -> Result<impl magnus::IntoValue, Error> {
            guard(|| $path($($argument),*))
        }
        $module.define_module_function($name, function!(guarded, $arity))?;
    })*};
}

/// Functions that need the interpreter, to make objects.
macro_rules! functions_with_ruby {
    ($module:expr, $($name:literal = $path:path [$($argument:ident: $type:ty),*] $arity:tt;)*) => {$({
        fn guarded(ruby: &Ruby, $($argument: $type),*) -> Result<impl magnus::IntoValue + use<>, Error> {
            guard(|| $path(ruby, $($argument),*))
        }
        $module.define_module_function($name, function!(guarded, $arity))?;
    })*};
}

fn always_true() -> Result<bool, Error> {
    Ok(cfg!(target_os = "linux"))
}

fn is_epoll(_: bool) -> Result<bool, Error> {
    Ok(cfg!(target_os = "linux"))
}

fn is_kqueue() -> Result<bool, Error> {
    Ok(!cfg!(target_os = "linux"))
}

fn set_kqueue(on: bool) -> Result<bool, Error> {
    if on && cfg!(target_os = "linux") {
        return Err(crate::errors::of_module("Unsupported", "kqueue is not supported on this platform"));
    }
    Ok(on)
}

fn library_type(ruby: &Ruby) -> Result<magnus::Symbol, Error> {
    Ok(ruby.to_symbol("extension"))
}

fn has_ssl() -> Result<bool, Error> {
    Ok(true)
}

#[magnus::init(name = "pelton_eventmachine")]
fn init(ruby: &Ruby) -> Result<(), Error> {
    guard(|| define(ruby))
}

fn define(ruby: &Ruby) -> Result<(), Error> {
    let module = ruby.define_module("EventMachine")?;
    // SAFETY: the lock is held, and the module is a constant.
    unsafe { call::set_known(magnus::rb_sys::AsRawValue::as_raw(module) as VALUE) };
    define_errors(ruby, module)?;
    define_constants(module)?;
    define_running(module)?;
    define_sources(module)?;
    define_settings(module)?;
    let connection = module.define_class("Connection", ruby.class_object())?;
    fn send_data(connection: magnus::Value, data: magnus::Value) -> Result<i64, Error> {
        guard(|| streams::connection_send_data(connection, data))
    }
    connection.define_method("send_data", method!(send_data, 1))
}

fn define_errors(ruby: &Ruby, module: RModule) -> Result<(), Error> {
    let parent = ruby.exception_runtime_error();
    for name in [
        "NoHandlerForAcceptedConnection",
        "ConnectionError",
        "ConnectionNotBound",
        "UnknownTimerFired",
        "Unsupported",
        "InvalidSignature",
        "InvalidPrivateKey",
        "InvalidCertificate",
    ] {
        module.define_error(name, parent)?;
    }
    Ok(())
}

fn define_constants(module: RModule) -> Result<(), Error> {
    for (name, value) in [
        ("TimerFired", 100),
        ("ConnectionData", 101),
        ("ConnectionUnbound", 102),
        ("ConnectionAccepted", 103),
        ("ConnectionCompleted", 104),
        ("LoopbreakSignalled", 105),
        ("ConnectionNotifyReadable", 106),
        ("ConnectionNotifyWritable", 107),
        ("SslHandshakeCompleted", 108),
        ("SslVerify", 109),
        ("EM_PROTO_SSLv2", 2),
        ("EM_PROTO_SSLv3", 4),
        ("EM_PROTO_TLSv1", 8),
        ("EM_PROTO_TLSv1_1", 16),
        ("EM_PROTO_TLSv1_2", 32),
        ("EM_PROTO_TLSv1_3", 64),
    ] {
        module.const_set(name, value)?;
    }
    // Neither exists here, whatever OpenSSL was built with.
    module.const_set("OPENSSL_NO_SSL2", true)?;
    module.const_set("OPENSSL_NO_SSL3", true)?;
    let version = pelton_openssl::openssl::version::version();
    module.const_set("OPENSSL_VERSION", version)?;
    module.const_set("OPENSSL_LIBRARY_VERSION", version)
}

fn define_running(module: RModule) -> Result<(), Error> {
    // SAFETY: the functions take the module and as many arguments as the arity says.
    unsafe {
        let module = magnus::rb_sys::AsRawValue::as_raw(module) as VALUE;
        type Function = unsafe extern "C" fn(VALUE) -> VALUE;
        type Untyped = unsafe extern "C" fn() -> VALUE;
        let untyped = |function: Function| std::mem::transmute::<Function, Untyped>(function);
        for name in [c"run_machine", c"run_machine_without_threads"] {
            rb_sys::rb_define_module_function(module, name.as_ptr(), Some(untyped(run::run_machine)), 0);
        }
        let once = Some(untyped(run::run_machine_once));
        rb_sys::rb_define_module_function(module, c"run_machine_once".as_ptr(), once, 0);
        type WithArguments = unsafe extern "C" fn(c_int, *const VALUE, VALUE) -> VALUE;
        let add_timer = Some(std::mem::transmute::<WithArguments, Untyped>(timers::add_timer));
        rb_sys::rb_define_module_function(module, c"add_timer".as_ptr(), add_timer, -1);
        type WithOne = unsafe extern "C" fn(VALUE, VALUE) -> VALUE;
        let cancel_timer = Some(std::mem::transmute::<WithOne, Untyped>(timers::cancel_timer));
        rb_sys::rb_define_module_function(module, c"cancel_timer".as_ptr(), cancel_timer, 1);
    }
    functions! { module,
        "initialize_event_machine" = run::initialize_event_machine[] 0;
        "release_machine" = release::release_machine[] 0;
        "stop" = run::stop[] 0;
        "stopping?" = run::is_stopping[] 0;
        "signal_loopbreak" = run::signal_loopbreak[] 0;
        "add_oneshot_timer" = timers::add_oneshot_timer[milliseconds: i64] 1;
        "cancel_oneshot_timer" = timers::cancel_oneshot_timer[sig: u64] 1;
        "get_timer_count" = timers::get_timer_count[] 0;
        "get_max_timer_count" = timers::get_max_timer_count[] 0;
        "set_max_timer_count" = timers::set_max_timer_count[count: usize] 1;
    }
    Ok(())
}

fn define_sources(module: RModule) -> Result<(), Error> {
    functions! { module,
        "start_tcp_server" = servers::start_tcp_server[host: String, port: i64] 2;
        "start_unix_server" = servers::start_unix_server[path: String] 1;
        "attach_sd" = servers::attach_sd[descriptor: i32] 1;
        "stop_tcp_server" = servers::stop_tcp_server[sig: u64] 1;
        "connect_server" = clients::connect_server[host: String, port: i64] 2;
        "bind_connect_server" = clients::bind_connect_server[bind: Option<String>, bind_port: Option<i64>, host: String, port: i64] 4;
        "connect_unix_server" = clients::connect_unix_server[path: String] 1;
        "send_data" = streams::send_data[sig: u64, data: magnus::RString, length: i64] 3;
        "close_connection" = streams::close_connection[sig: u64, after_writing: bool] 2;
        "pause_connection" = streams::pause_connection[sig: u64] 1;
        "resume_connection" = streams::resume_connection[sig: u64] 1;
        "connection_paused?" = streams::is_connection_paused[sig: u64] 1;
        "open_udp_socket" = datagrams::open_udp_socket[host: String, port: i64] 2;
        "send_datagram" = datagrams::send_datagram[sig: u64, data: magnus::RString, length: i64, host: String, port: i64] 5;
        "set_tls_trust" = tls::set_tls_trust[sig: u64, roots: String, name: String] 3;
        "start_tls" = tls::start_tls[sig: u64] 1;
        "get_cipher_bits" = tls::get_cipher_bits[sig: u64] 1;
        "get_cipher_name" = tls::get_cipher_name[sig: u64] 1;
        "get_cipher_protocol" = tls::get_cipher_protocol[sig: u64] 1;
        "get_sni_hostname" = tls::get_sni_hostname[sig: u64] 1;
        "get_tls_error" = tls::get_tls_error[sig: u64] 1;
        "set_tls_parms" = tls::set_tls_parms[
            sig: u64, key_file: String, key: String, passphrase: String, certificate_file: String, certificate: String,
            asks_program: bool, requires_certificate: bool, server_name: String, ciphers: String, curve: String,
            dh_params: String, versions: i32
        ] 13;
        "start_proxy" = proxies::start_proxy[from: u64, to: u64, most_queued: usize, length: usize] 4;
        "stop_proxy" = proxies::stop_proxy[from: u64] 1;
        "get_proxied_bytes" = proxies::get_proxied_bytes[from: u64] 1;
        "attach_process" = processes::attach_process[descriptor: i32, pid: u32] 2;
        "watch_pid" = processes::watch_pid[pid: u32] 1;
        "unwatch_pid" = processes::unwatch_pid[sig: u64] 1;
        "watch_filename" = files::watch_filename[path: String] 1;
        "unwatch_filename" = files::unwatch_filename[sig: u64] 1;
        "read_keyboard" = files::read_keyboard[] 0;
        "attach_fd" = descriptors::attach_fd[descriptor: i32, watch_only: bool] 2;
        "detach_fd" = descriptors::detach_fd[sig: u64] 1;
        "watch_only?" = descriptors::is_watch_only[sig: u64] 1;
        "get_file_descriptor" = descriptors::get_file_descriptor[sig: u64] 1;
        "set_notify_readable" = descriptors::set_notify_readable[sig: u64, on: bool] 2;
        "set_notify_writable" = descriptors::set_notify_writable[sig: u64, on: bool] 2;
        "is_notify_readable" = descriptors::is_notify_readable[sig: u64] 1;
        "is_notify_writable" = descriptors::is_notify_writable[sig: u64] 1;
    }
    Ok(())
}

fn define_settings(module: RModule) -> Result<(), Error> {
    functions! { module,
        "report_connection_error_status" = properties::report_connection_error_status[sig: u64] 1;
        "accepted?" = properties::is_accepted[sig: u64] 1;
        "get_idle_time" = properties::get_idle_time[sig: u64] 1;
        "get_outbound_data_size" = properties::get_outbound_data_size[sig: u64] 1;
        "get_comm_inactivity_timeout" = properties::get_comm_inactivity_timeout[sig: u64] 1;
        "set_comm_inactivity_timeout" = properties::set_comm_inactivity_timeout[sig: u64, seconds: f64] 2;
        "get_pending_connect_timeout" = properties::get_pending_connect_timeout[sig: u64] 1;
        "set_pending_connect_timeout" = properties::set_pending_connect_timeout[sig: u64, seconds: f64] 2;
        "set_sock_opt" = socket_options::set_sock_opt[sig: u64, level: i32, option: i32, value: magnus::Value] 4;
        "set_keepalive" = socket_options::enable_keepalive[sig: u64, idle: Option<i32>, interval: Option<i32>, count: Option<i32>] 4;
        "clear_keepalive" = socket_options::disable_keepalive[sig: u64] 1;
        "set_timer_quantum" = tuning::set_timer_quantum[milliseconds: i64] 1;
        "get_heartbeat_interval" = tuning::get_heartbeat_interval[] 0;
        "set_heartbeat_interval" = tuning::set_heartbeat_interval[seconds: f64] 1;
        "get_simultaneous_accept_count" = tuning::get_simultaneous_accept_count[] 0;
        "set_simultaneous_accept_count" = tuning::set_simultaneous_accept_count[count: i64] 1;
        "set_rlimit_nofile" = tuning::set_rlimit_nofile[count: Option<i64>] 1;
        "get_connection_count" = tuning::get_connection_count[] 0;
        "num_close_scheduled" = tuning::num_close_scheduled[] 0;
        "epoll" = always_true[] 0;
        "epoll?" = always_true[] 0;
        "epoll=" = is_epoll[on: bool] 1;
        "kqueue" = is_kqueue[] 0;
        "kqueue?" = is_kqueue[] 0;
        "kqueue=" = set_kqueue[on: bool] 1;
        "set_outbound_marks" = extras::set_outbound_marks[sig: u64, low: usize, high: usize, most: usize] 4;
        "precise_timers=" = extras::set_precise_timers[on: bool] 1;
        "happy_eyeballs=" = extras::set_happy_eyeballs[on: bool] 1;
        "measure_times=" = extras::set_measure_times[on: bool] 1;
        "prometheus_stats" = extras::prometheus_stats[] 0;
        "set_watchdog" = extras::set_watchdog[seconds: f64, descriptor: i32] 2;
        "ssl?" = has_ssl[] 0;
    }
    fn add_timer_checked(arguments: &[magnus::Value]) -> Result<u64, Error> {
        guard(|| timers::add_timer_checked(arguments))
    }
    module.define_module_function("add_timer_checked", function!(add_timer_checked, -1))?;
    functions_with_ruby! { module,
        "get_peer_cert" = tls::get_peer_cert[sig: u64] 1;
        "get_peername" = properties::get_peername[sig: u64] 1;
        "get_sockname" = properties::get_sockname[sig: u64] 1;
        "get_sock_opt" = socket_options::get_sock_opt[sig: u64, level: i32, option: i32] 3;
        "stats" = extras::stats[] 0;
        "current_time" = tuning::current_time[] 0;
        "library_type" = library_type[] 0;
    }
    Ok(())
}
