# frozen_string_literal: true

module EventMachine
  # A connection, a datagram socket, or a watched descriptor. Programs derive their handlers from it. `send_data` is native.
  class Connection
    attr_accessor :signature

    # The io that EM.attach was given.
    attr_writer :attached_io

    # Programs may define a method named `method`.
    alias original_method method

    class << self
      # Makes the object, and tells it of its signature before it is initialized.
      ruby2_keywords def new(signature, *args)
        allocate.begin_connection(signature, args)
      end
    end

    def initialize(*); end

    # Initializes a new object.
    def begin_connection(signature, args)
      @signature = signature
      initialize(*args)
      post_init
      self
    end

    # Callbacks.

    def post_init; end

    def receive_data(_data); end

    def connection_completed; end

    def ssl_handshake_completed; end

    def ssl_verify_peer(_cert); end

    def unbind; end

    def proxy_target_unbound; end

    def proxy_completed; end

    # Ending.

    def close_connection(after_writing = false)
      EventMachine.close_connection(@signature, after_writing)
    end

    def close_connection_after_writing
      close_connection(true)
    end

    # Ends the connection without closing its descriptor, which is returned.
    def detach
      EventMachine.detach_fd(@signature)
    end

    def close_attached_io
      io = @attached_io
      return unless io

      @attached_io = nil
      begin
        io.close
      rescue IOError
        # The program has closed it.
      end
    end

    def reconnect(server, port)
      EventMachine.reconnect(server, port, self)
    end

    # Sending.

    def send_datagram(data, recipient_address, recipient_port)
      data = data.to_s
      EventMachine.send_datagram(@signature, data, data.bytesize, recipient_address.to_s, Integer(recipient_port))
    end

    # Sends a file of at most 32 KiB.
    def send_file_data(filename)
      EventMachine.send_file_data(@signature, filename)
    end

    # Sends a file of any size. Returns a deferrable.
    def stream_file_data(filename, args = {})
      EventMachine::FileStreamer.new(self, filename, args)
    end

    def get_outbound_data_size
      EventMachine.get_outbound_data_size(@signature)
    end

    # Proxies.

    # Sends everything that this connection receives on another one.
    def proxy_incoming_to(connection, bufsize = 0)
      EventMachine.enable_proxy(self, connection, bufsize)
    end

    def stop_proxying
      EventMachine.disable_proxy(self)
    end

    def get_proxied_bytes
      EventMachine.get_proxied_bytes(@signature)
    end

    # Child processes.

    def get_pid
      EventMachine.get_subprocess_pid(@signature)
    end

    # In `unbind`, and after it, the Process::Status of the child.
    def get_status
      EventMachine.get_subprocess_status(@signature)
    end

    # Flow control.

    def pause
      EventMachine.pause_connection(@signature)
    end

    def resume
      EventMachine.resume_connection(@signature)
    end

    def paused?
      EventMachine.connection_paused?(@signature)
    end

    # Watched descriptors.

    def watch_only?
      EventMachine.watch_only?(@signature)
    end

    def notify_readable=(mode)
      EventMachine.set_notify_readable(@signature, mode ? true : false)
    end

    def notify_readable?
      EventMachine.is_notify_readable(@signature)
    end

    def notify_writable=(mode)
      EventMachine.set_notify_writable(@signature, mode ? true : false)
    end

    def notify_writable?
      EventMachine.is_notify_writable(@signature)
    end

    # Properties.

    # Returns false, true if the connection has ended, or the class of a pending error.
    def error?
      number = EventMachine.report_connection_error_status(@signature)
      case number
      when 0 then false
      when -1 then true
      else EventMachine::ERRNOS[number]
      end
    end

    def get_peername
      EventMachine.get_peername(@signature)
    end

    def get_sockname
      EventMachine.get_sockname(@signature)
    end

    def get_sock_opt(level, option)
      EventMachine.get_sock_opt(@signature, level, option)
    end

    def set_sock_opt(level, option, value)
      EventMachine.set_sock_opt(@signature, level, option, value)
    end

    # Seconds, or nil for the system's default.
    def enable_keepalive(idle = nil, interval = nil, count = nil)
      EventMachine.set_keepalive(@signature, idle, interval, count)
    end

    def disable_keepalive
      EventMachine.clear_keepalive(@signature)
    end

    def get_idle_time
      EventMachine.get_idle_time(@signature)
    end

    def comm_inactivity_timeout
      EventMachine.get_comm_inactivity_timeout(@signature)
    end

    def comm_inactivity_timeout=(seconds)
      EventMachine.set_comm_inactivity_timeout(@signature, seconds.to_f)
    end
    alias set_comm_inactivity_timeout comm_inactivity_timeout=

    def pending_connect_timeout
      EventMachine.get_pending_connect_timeout(@signature)
    end

    def pending_connect_timeout=(seconds)
      EventMachine.set_pending_connect_timeout(@signature, seconds.to_f)
    end
    alias set_pending_connect_timeout pending_connect_timeout=

    # For compatibility: objects are found by their signature.
    def associate_callback_target(_signature); end
  end
end
