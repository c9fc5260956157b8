# frozen_string_literal: true

module EventMachine
  # An object that is used on a thread of its own, one call at a time.
  class ThreadedResource
    def initialize
      @resource = yield
      @running = true
      @queue = ::Queue.new
      @thread = Thread.new do
        @queue.pop.call while @running
      end
    end

    # Calls the block with the object, on its thread. Returns a completion.
    def dispatch
      completion = EventMachine::Completion.new
      @queue << lambda do
        completion.succeed(yield(@resource))
      rescue StandardError => e
        completion.fail(e)
      end
      completion
    end

    # Ends the thread, when the calls before have been made. Returns it.
    def shutdown
      @queue << -> { @running = false }
      @thread.join
    end
  end
end
