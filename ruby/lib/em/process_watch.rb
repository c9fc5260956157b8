# frozen_string_literal: true

module EventMachine
  # Watches a process, on Linux too.
  class ProcessWatch < Connection
    attr_reader :pid

    def receive_data(data)
      case data
      when 'fork' then process_forked
      when 'exited' then process_exited
      end
    end

    # Never called on Linux, which reports exits only.
    def process_forked; end

    def process_exited; end

    def stop_watching
      EventMachine.unwatch_pid(@signature)
    end
  end

  # Calls the handler when a process exits. The handler is a module, or a subclass of ProcessWatch.
  def self.watch_process(pid, handler = nil, *args, &block)
    on_reactor_thread do
      pid = Integer(pid)
      klass = klass_from_handler(ProcessWatch, handler, *args)
      signature = watch_pid(pid)
      watch = klass.allocate
      watch.instance_variable_set(:@pid, pid)
      watch.begin_connection(signature, args)
      @conns[signature] = watch
      block&.call(watch)
      watch
    end
  end
end
