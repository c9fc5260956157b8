# frozen_string_literal: true

require_relative 'helper'

# The interpreter's lock, threads, signals, fibers.
class TestThreads < PeltonTest
  test 'other threads run while the reactor sleeps' do
    counted = 0
    thread = Thread.new { loop { counted += 1; Thread.pass } }
    # Without the lock, the thread would never count while the only timer waits.
    run_reactor { EM.add_periodic_timer(0.02) { EM.stop if counted > 100 } }
  ensure
    thread.kill
  end

  test 'other threads run while the reactor is busy' do
    runs = 0
    thread = Thread.new { loop { runs += 1; sleep 0.001 } }
    begun = Process.clock_gettime(Process::CLOCK_PROCESS_CPUTIME_ID)
    run_reactor do
      spin = proc { runs >= 30 ? EM.stop : EM.next_tick(spin) }
      spin.call
    end
    # Ruby's own interval is 100 ms of processor time, which would be 3 s.
    assert_operator Process.clock_gettime(Process::CLOCK_PROCESS_CPUTIME_ID) - begun, :<, 2
  ensure
    thread.kill
  end

  test 'next_tick from another thread ends a sleep at once' do
    latency = nil
    run_reactor do
      Thread.new do
        sleep 0.05
        sent = Process.clock_gettime(Process::CLOCK_MONOTONIC)
        EM.next_tick do
          latency = Process.clock_gettime(Process::CLOCK_MONOTONIC) - sent
          EM.stop
        end
      end
    end
    # EventMachine's own idle quantum is 90 ms. A loaded machine may be late, but rarely by this much.
    assert_operator latency, :<, 5
  end

  test 'a trap handler runs while the reactor sleeps, and may use next_tick, timers and stop' do
    seen = []
    before = trap('USR2') do
      EM.next_tick { seen << :tick }
      EM.add_timer(0.001) { seen << :timer }
      EM.add_timer(0.02) { EM.stop }
    end
    run_reactor { Thread.new { sleep 0.05; Process.kill('USR2', Process.pid) } }
    assert_equal %i[tick timer], seen.sort_by(&:to_s).reverse.sort
  ensure
    trap('USR2', before || 'DEFAULT')
  end

  test 'stop works in a trap handler' do
    before = trap('USR2') { EM.stop }
    run_reactor { Thread.new { sleep 0.05; Process.kill('USR2', Process.pid) } }
  ensure
    trap('USR2', before || 'DEFAULT')
  end

  test 'Timeout ends a sleeping reactor' do
    assert_raise(Timeout::Error) { Timeout.timeout(0.05) { EM.run {} } }
    assert_reactor_works
  end

  test 'Timeout ends a busy reactor' do
    assert_raise(Timeout::Error) do
      Timeout.timeout(0.05) do
        EM.run do
          spin = proc { EM.next_tick(spin) }
          spin.call
        end
      end
    end
    assert_reactor_works
  end

  test 'Thread#raise and Thread#kill end a sleeping reactor' do
    %i[raise kill].each do |how|
      running = ::Queue.new
      thread = Thread.new do
        Thread.current.report_on_exception = false
        EM.run { running << true }
      end
      running.pop
      sleep 0.01
      how == :raise ? thread.raise(IOError, 'out') : thread.kill
      if how == :raise
        assert_raise(IOError) { thread.join(DEADLINE) }
      else
        assert thread.join(DEADLINE)
      end
      assert_reactor_works
    end
  end

  test 'connections are used from another thread' do
    answers = []
    received = ::Queue.new
    echo = Module.new { def receive_data(data) = send_data(data) }
    run_reactor do
      port = serve(echo)
      Thread.new do
        client = EM.connect('127.0.0.1', port, Module.new { define_method(:receive_data) { |data| received << data } })
        client.send_data('from a thread')
        answers << received.pop
        answers << Socket.unpack_sockaddr_in(client.get_sockname).last
        client.comm_inactivity_timeout = 5
        answers << client.comm_inactivity_timeout
      rescue StandardError => e
        answers << e
      ensure
        EM.stop
      end
    end
    assert_equal ['from a thread', '127.0.0.1', 5.0], answers
  end

  test 'a server is started from the thread that waits for the reactor' do
    thread = Thread.new { EM.run }
    sleep 0.001 until EM.reactor_running?
    port = port_of(EM.start_server('127.0.0.1', 0, Module.new { def post_init = send_data("hello\n") }))
    assert_equal "hello\n", TCPSocket.open('127.0.0.1', port, &:gets)
    EM.stop
    assert thread.join(DEADLINE)
  end

  test 'fibers wait for answers' do
    result = nil
    echo = Module.new { def receive_data(data) = send_data(data.upcase) }
    run_reactor do
      port = serve(echo)
      Fiber.new do
        ask = lambda do |text|
          fiber = Fiber.current
          EM.connect('127.0.0.1', port, Module.new do
            define_method(:post_init) { send_data(text) }
            define_method(:receive_data) { |data| fiber.resume(data) }
          end)
          Fiber.yield
        end
        result = [ask.call('one'), ask.call('two')]
        EM.stop
      end.resume
    end
    assert_equal %w[ONE TWO], result
  end

  test 'a reactor in a fiber that is abandoned does no harm' do
    pid = fork do
      fiber = Fiber.new { EM.run { EM.add_timer(0.001) { Fiber.yield :left } } }
      ok = fiber.resume == :left
      fiber = nil
      GC.start
      EM.next_tick {}
      begin
        EM.add_timer(1) {}
      rescue RuntimeError
        nil
      end
      exit!(ok ? 0 : 1)
    end
    assert_equal 0, Process.wait2(pid).last.exitstatus
  end

  test 'deferred work and its result run on the right threads' do
    threads = []
    run_reactor do
      EM.defer(proc { threads << Thread.current; 42 }, proc { |result|
        threads << Thread.current
        assert_equal 42, result
        EM.stop
      })
    end
    assert_not_equal threads.first, threads.last
    assert_equal Thread.current, threads.last
  end

  test 'the errback of deferred work gets the error' do
    error = nil
    run_reactor do
      EM.defer(proc { raise ArgumentError, 'wrong' }, proc { flunk }, proc { |e| error = e; EM.stop })
    end
    assert_kind_of ArgumentError, error
  end

  test 'no thread of the pool survives the reactor' do
    before = Thread.list.size
    run_reactor { EM.defer(proc { 1 }, proc { EM.stop }) }
    deadline = Time.now + DEADLINE
    sleep 0.001 until Thread.list.size == before || Time.now > deadline
    assert_equal before, Thread.list.size
  end
end
