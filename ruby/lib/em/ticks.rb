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

    # Calls the block on the reactor's thread, and returns its result, or raises its exception. Another thread waits for it. So
    # connections are made where their callbacks run, and none is called before it is known.
    def on_reactor_thread(&block)
      return block.call if !reactor_running? || reactor_thread?

      answer = ::Queue.new
      @waiting_threads << answer
      begin
        next_tick { answer << call_for_other_thread(block) }
        how, result = answer.pop
      ensure
        @waiting_threads.delete(answer)
      end
      raise result if how == :raised

      result
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

    private

    def call_for_other_thread(block)
      [:returned, block.call]
    rescue Exception => e # rubocop:disable Lint/RescueException
      [:raised, e]
    end

    # Their ticks are dropped with the reactor.
    def release_waiting_threads
      @waiting_threads.each { |answer| answer << [:raised, RuntimeError.new('the reactor has stopped')] }
      @waiting_threads.clear
    end
  end
end
