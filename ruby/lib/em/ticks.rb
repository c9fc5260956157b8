# frozen_string_literal: true

module EventMachine
  class << self
    # Calls back in the next pass of the reactor, on its thread. Any thread may call this, and so may a trap handler.
    def next_tick(callback = nil, &block)
      code = callback.respond_to?(:call) ? callback : block
      raise ArgumentError, 'a tick needs a block or a callable' unless code

      # An array is changed atomically, under the interpreter's lock.
      @next_tick_queue << code
      signal_loopbreak
    end

    # Calls back at once on the reactor's thread, and in a tick on others.
    def schedule(*args, &block)
      callback = Callback(*args, &block)
      if reactor_running? && reactor_thread?
        callback.call
      else
        next_tick(callback)
      end
    end

    # Runs the callbacks of deferred work, and the ticks that are queued now. If one raises, the rest runs in the next pass.
    def run_deferred_callbacks
      if @resultqueue
        until @resultqueue.empty?
          result, callback = @resultqueue.pop
          callback&.call(result)
        end
      end
      queue = @next_tick_queue
      queue.size.times { queue.shift&.call }
    ensure
      signal_loopbreak unless @next_tick_queue.empty? && (@resultqueue.nil? || @resultqueue.empty?)
    end

    # Calls the block in every pass, until it returns :stop.
    def tick_loop(*args, &block)
      EventMachine::TickLoop.new(*args, &block).start
    end
  end
end
