# frozen_string_literal: true

require 'shellwords'

module EventMachine
  class << self
    # Runs a program without a shell. Its standard input and output are the connection; `unbind` is called when it has exited.
    ruby2_keywords def popen(cmd, handler = nil, *args, &block)
      on_reactor_thread do
        klass = klass_from_handler(Connection, handler, *args)
        words = cmd.is_a?(Array) ? cmd.map(&:to_s) : Shellwords.shellwords(cmd)
        words.unshift(words.first)
        signature = invoke_popen(words)
        connection = klass.new(signature, *args)
        @conns[signature] = connection
        block&.call(connection)
        connection
      end
    end

    # Runs a program, or a line of shell if there are no arguments. The last proc gets the output and the status; the one before
    # it gets the process when it has started. Returns the process id.
    def system(cmd, *args, &block)
      callback = block || (args.pop if args.last.is_a?(Proc))
      init = args.pop if args.last.is_a?(Proc)
      words = args.empty? ? ['sh', '-c', cmd.to_s] : [cmd, *args]
      popen(words, SystemCmd, callback) { |process| init&.call(process) }.get_pid
    end

    # Starts a child. The first two words are the program and the name that it is told.
    def invoke_popen(words)
      raise 'too many arguments to run a program' if words.size >= 2048

      ours, theirs = UNIXSocket.pair
      begin
        pid = spawn_child(words, theirs)
        signature = attach_process(ours.fileno, pid)
      ensure
        ours.close
        theirs.close
      end
      @subprocesses[signature] = [pid, nil]
      signature
    end

    def get_subprocess_pid(signature)
      @subprocesses[signature]&.first
    end

    def get_subprocess_status(signature)
      @subprocesses[signature]&.last
    end

    private

    # A program that cannot be run is a child that exits with 1, as in EventMachine.
    def spawn_child(words, theirs)
      program, name, *arguments = words
      Process.spawn([program, name], *arguments, in: theirs, out: theirs)
    rescue SystemCallError => e
      warn "EventMachine.popen: #{program}: #{e.message}"
      Process.spawn('exit 1')
    end

    # Waits for a child that has exited. One that still runs, because the reactor stops, is left to a thread.
    def reap_subprocess(signature)
      child = @subprocesses[signature]
      return unless child

      status = Process::Status.wait(child.first, Process::WNOHANG)
      if status.nil?
        Process.detach(child.first)
      else
        child[1] = status.freeze
      end
    rescue SystemCallError
      # Someone else has waited for it.
    end
  end

  # Collects the output of EM.system.
  class SystemCmd < EventMachine::Connection
    def initialize(callback)
      super()
      @callback = callback
      @output = []
    end

    def receive_data(data)
      @output << data
    end

    def unbind
      @callback&.call(@output.join, get_status)
    end
  end

  # A child process as a deferrable: it succeeds with the output.
  class DeferrableChildProcess < EventMachine::Connection
    include EventMachine::Deferrable

    def initialize
      super
      @data = []
    end

    def self.open(cmd)
      EventMachine.popen(cmd, DeferrableChildProcess)
    end

    def receive_data(data)
      @data << data
    end

    def unbind
      succeed(@data.join)
    end
  end
end
