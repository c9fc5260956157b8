# frozen_string_literal: true

require 'fcntl'
require_relative 'helper'

# What well-known articles about EventMachine show: the loop, loop-breaks, heartbeats, the pool of threads, and fibers around
# callbacks. The programs reach into the module as the articles do.
class TestSeeds < PeltonTest
  test 'the standard snippet: everything is wrapped in EM.run' do
    handled = false
    EM.run do
      handled = true
      EM.stop
    end
    assert handled
  end

  test 'a loop-break from another thread makes the reactor run what is queued' do
    ran = false
    run_reactor do
      Thread.new do
        EM.instance_variable_get(:@next_tick_mutex).synchronize do
          EM.instance_variable_get(:@next_tick_queue) << proc { ran = true; EM.stop }
        end
        EM.signal_loopbreak
      end
    end
    assert ran
  end

  test 'a program replaces how deferred results and ticks are run, over the queues of the module' do
    original = EM.method(:run_deferred_callbacks).unbind
    runs = 0
    EM.define_singleton_method(:run_deferred_callbacks) do
      runs += 1
      until (@resultqueue ||= []).empty?
        result, callback = @resultqueue.pop
        callback&.call(result)
      end
      waiting = @next_tick_mutex.synchronize { @next_tick_queue.size }
      waiting.times { @next_tick_mutex.synchronize { @next_tick_queue.shift }.call }
    end
    seen = []
    run_reactor do
      EM.defer(proc { 6 * 7 }, proc { |result| seen << result; EM.next_tick { EM.stop } })
      EM.next_tick { seen << :tick }
    end
    assert_equal [42, :tick].to_a, seen.sort_by(&:to_s)
    assert_operator runs, :>=, 2
  ensure
    EM.define_singleton_method(:run_deferred_callbacks, original.bind(EM))
  end

  test 'a program replaces the pool of threads, over the queues of the module' do
    before = EM.threadpool_size
    originals = %i[defer spawn_threadpool].to_h { |name| [name, EM.method(name).unbind] }
    EM.define_singleton_method(:spawn_threadpool) do
      until @threadpool.size == @threadpool_size.to_i
        @threadpool << Thread.new do
          loop do
            operation, callback = *@threadqueue.pop
            @resultqueue << [operation.call, callback]
            EventMachine.signal_loopbreak
          end
        end
      end
      @all_threads_spawned = true
    end
    EM.define_singleton_method(:defer) do |operation = nil, callback = nil, &block|
      unless @threadpool
        @threadpool = []
        @threadqueue = ::Queue.new
        @resultqueue = ::Queue.new
        spawn_threadpool
      end
      @threadqueue << [operation || block, callback]
    end
    EM.threadpool_size = 2
    results = []
    run_reactor do
      10.times { |i| EM.defer(proc { i * i }, proc { |result| results << result; EM.stop if results.size == 10 }) }
    end
    assert_equal Array.new(10) { |i| i * i }, results.sort
  ensure
    EM.threadpool_size = before
    originals.each { |name, original| EM.define_singleton_method(name, original.bind(EM)) }
  end

  test 'the pool of threads has the size that the program sets' do
    before = EM.threadpool_size
    EM.threadpool_size = 3
    size = nil
    run_reactor { EM.defer(proc { 1 }, proc { size = EM.threadpool.size; EM.stop }) }
    assert_equal 3, size
  ensure
    EM.threadpool_size = before
  end

  test 'a heartbeat closes a connection without activity' do
    reason = nil
    run_reactor do
      port = serve(Module.new do
        define_method(:post_init) { self.comm_inactivity_timeout = 0.05 }
        define_method(:unbind) { |why| reason = why; EM.stop }
      end)
      EM.connect('127.0.0.1', port)
    end
    assert_equal Errno::ETIMEDOUT, reason
  end

  test 'a descriptor is non-blocking and without the Nagle algorithm' do
    run_reactor do
      EM.connect('127.0.0.1', serve, Module.new do
        define_method(:connection_completed) do
          nodelay = get_sock_opt(Socket::IPPROTO_TCP, Socket::TCP_NODELAY).unpack1('i')
          socket = Socket.for_fd(EM.get_file_descriptor(@signature))
          socket.autoclose = false
          flags = socket.fcntl(Fcntl::F_GETFL)
          raise 'not set' unless nodelay == 1 && flags.anybits?(File::NONBLOCK)

          EM.stop
        end
      end)
    end
  end

  test 'post_init is called at once, other callbacks after the current code' do
    seen = []
    run_reactor do
      EM.connect('127.0.0.1', serve, Module.new do
        define_method(:post_init) { seen << :post_init }
        define_method(:connection_completed) { seen << :completed; EM.stop }
      end)
      seen << :after_connect
    end
    assert_equal %i[post_init after_connect completed], seen
  end

  # A request as a deferrable, on a line protocol.
  class Request < EM::Connection
    include EM::Deferrable
    attr_reader :response

    def initialize(word)
      super()
      @word = word
    end

    def post_init
      send_data("#{@word}\n")
    end

    def receive_data(data)
      @response = data.chomp
      succeed(self)
    end

    def unbind
      fail(self)
    end
  end

  test 'a fiber around callbacks turns them into sequential code' do
    answers = []
    run_reactor do
      port = serve(Module.new { def receive_data(data) = send_data(data.reverse.strip + "\n") })
      get = lambda do |word|
        current = Fiber.current
        request = EM.connect('127.0.0.1', port, Request, word)
        request.callback { current.resume(request) }
        request.errback { current.resume(request) }
        Fiber.yield
      end
      Fiber.new do
        answers << get.call('abc').response << get.call('xyz').response
        EM.stop
      end.resume
    end
    assert_equal %w[cba zyx], answers
  end
end
