# frozen_string_literal: true

module EventMachine
  @reactor_running = false
  @reactor_pid = nil
  @reactor_thread = nil
  @next_tick_queue = []
  @next_tick_mutex = Mutex.new
  @tails = []
  @threadpool = nil
  @threadpool_size = 20
  @error_handler = nil
  @wrapped_exception = nil
  @conns = {}
  @acceptors = {}
  @timers = {}
  @subprocesses = {}
  # The queues on which other threads wait for an answer of the reactor.
  @waiting_threads = []

  class << self
    attr_reader :reactor_thread
    attr_accessor :threadpool_size

    # Runs the reactor until it is stopped. Inside of it, calls the block at once.
    def run(blk = nil, tail = nil, &block)
      code = blk || block
      forget_reactor_of_parent if @reactor_running && @reactor_pid != Process.pid
      @tails.unshift(tail) if tail
      if reactor_running?
        code&.call
      else
        run_reactor(code)
      end
    end

    # Runs the reactor for the time of the block.
    def run_block(&block)
      run do
        block.call
        stop
      end
    end

    def reactor_running?
      @reactor_running && Process.pid == @reactor_pid
    end

    def reactor_thread?
      Thread.current == @reactor_thread
    end

    # Stops the reactor after the current pass.
    def stop_event_loop
      stop
    end

    # Calls back when the reactor has stopped, before connections are closed. The last one added is called first.
    def add_shutdown_hook(&block)
      @tails << block
    end

    # Calls back for every StandardError that a callback raises. Without a block, removes the handler.
    def error_handler(callback = nil, &block)
      @error_handler = callback || block
    end

    # Runs a reactor in a child process. It inherits none of the connections.
    def fork_reactor(&block)
      Kernel.fork do
        forget_reactor_of_parent if @reactor_running
        run(block)
      end
    end

    # Forgets threads, ticks and hooks. Called when the reactor has stopped.
    def cleanup_machine
      kill_threadpool if @threadpool && !@threadpool.empty?
      @threadpool = nil
      @threadqueue = nil
      @resultqueue = nil
      @all_threads_spawned = false
      @next_tick_queue = []
      @tails = []
      release_waiting_threads
    end

    def connection_count
      get_connection_count
    end

    def heartbeat_interval
      get_heartbeat_interval
    end

    def heartbeat_interval=(seconds)
      set_heartbeat_interval(seconds.to_f)
    end

    # Sets the limit of open descriptors, or returns it.
    def set_descriptor_table_size(count = nil)
      set_rlimit_nofile(count)
    end

    # Gives up root.
    def set_effective_user(username)
      setuid_string(username)
    end

    def setuid_string(username)
      require 'etc'
      Process::Sys.setuid(Etc.getpwnam(username).uid)
    rescue ArgumentError => e
      raise "setuid: #{e.message}"
    end

    # What happened, for a signature. The native library calls this for what is not frequent.
    def event_callback(signature, opcode, data)
      case opcode
      when ConnectionData, ConnectionCompleted
        raise ConnectionNotBound, "no connection has the signature #{signature}"
      when ConnectionUnbound then unbound(signature, data)
      when ConnectionAccepted then accepted(signature, data)
      when TimerFired then raise UnknownTimerFired, "no timer has the signature #{data}" unless @timers.key?(signature)
      when LoopbreakSignalled then run_deferred_callbacks
      end
    end

    private

    def run_reactor(code)
      @conns = {}
      @acceptors = {}
      @timers = {}
      @subprocesses = {}
      @wrapped_exception = nil
      @next_tick_queue ||= []
      @tails ||= []
      begin
        initialize_event_machine
        @reactor_pid = Process.pid
        @reactor_thread = Thread.current
        @reactor_running = true
        add_timer(0, code) if code
        run_machine
      ensure
        end_reactor
      end
      raise @wrapped_exception if @wrapped_exception
    end

    # Whatever raises in here, the rest of it is done.
    def end_reactor
      @tails.pop.call until @tails.empty?
    ensure
      begin
        release_machine if @reactor_running
      ensure
        cleanup_machine
        @reactor_running = false
        @reactor_thread = nil
      end
    end

    def forget_reactor_of_parent
      # The child has none of the parent's threads.
      @threadpool = nil
      release_machine
      cleanup_machine
      @reactor_running = false
      @reactor_thread = nil
    end

    def accepted(server, signature)
      klass, args, block = @acceptors[server]
      raise NoHandlerForAcceptedConnection unless klass

      connection = klass.new(signature, *args)
      @conns[signature] = connection
      block&.call(connection)
    end

    # An exception of `unbind` does not stop others from being told. Without a handler it is raised at the end.
    def unbound(signature, error)
      connection = @conns.delete(signature)
      return @acceptors.delete(signature) unless connection

      reap_subprocess(signature)
      begin
        if connection.original_method(:unbind).arity.zero?
          connection.unbind
        else
          connection.unbind(error.zero? ? nil : ERRNOS[error])
        end
        connection.close_attached_io if connection.respond_to?(:close_attached_io)
      rescue Exception => e # rubocop:disable Lint/RescueException
        if @error_handler
          @error_handler.call(e)
        else
          @wrapped_exception = e
          stop
        end
      end
    end
  end
end
