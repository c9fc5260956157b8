# frozen_string_literal: true

module EventMachine
  class << self
    attr_reader :threadpool

    # Runs a block on a thread of the pool, then the callback with its result on the reactor's thread. Errors go to the errback,
    # or end the process if there is none.
    def defer(operation = nil, callback = nil, errback = nil, &block)
      unless @threadpool
        @threadpool = []
        @threadqueue = ::Queue.new
        @resultqueue = ::Queue.new
        spawn_threadpool
      end
      @threadqueue << [operation || block, callback, errback]
    end

    def spawn_threadpool
      until @threadpool.size == @threadpool_size.to_i
        jobs = @threadqueue
        results = @resultqueue
        thread = Thread.new { work_through(jobs, results) }
        thread.abort_on_exception = true
        @threadpool << thread
      end
      @all_threads_spawned = true
    end

    # Returns whether nothing that was deferred is running or queued.
    def defers_finished?
      return true unless @threadpool

      @all_threads_spawned && @threadqueue.empty? && @resultqueue.empty? && @threadqueue.num_waiting == @threadpool.size
    end

    private

    def work_through(jobs, results)
      Thread.current.report_on_exception = false
      loop do
        operation, callback, errback = jobs.pop
        begin
          results << [operation.call, callback]
        rescue Exception => e # rubocop:disable Lint/RescueException
          raise e unless errback

          results << [e, errback]
        end
        signal_loopbreak
      end
    end

    def kill_threadpool
      # A thread of the pool that ends the reactor must not kill itself before the others.
      @threadpool.each { |thread| thread.kill unless thread == Thread.current }
    end
  end
end
