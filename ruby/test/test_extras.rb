# frozen_string_literal: true

require_relative 'helper'

# What programs can ask for beyond EventMachine.
class TestExtras < PeltonTest
  def teardown
    EM.precise_timers = EM.happy_eyeballs = EM.measure_times = false
    super
  end

  test 'a bounded queue refuses what does not fit, and tells when it is short again' do
    events = []
    run_reactor do
      reader = nil
      port = serve(Module.new do
        define_method(:post_init) { reader = self; pause }
      end)
      EM.connect('127.0.0.1', port, Module.new do
        define_method(:connection_completed) do
          limit_outbound(100_000, low: 10_000, most: 20_000_000)
          events << outbound_full?
          # More than the kernel takes.
          send_data('x' * 19_000_000)
          events << outbound_full?
          before = get_outbound_data_size
          begin
            send_data('x' * 20_000_000)
          rescue EM::OutboundFull
            events << :refused
          end
          events << (get_outbound_data_size == before)
          EM.add_timer(0.05) { reader.resume }
        end
        define_method(:outbound_drained) do
          events << [:drained, get_outbound_data_size <= 10_000]
          limit_outbound(nil)
          send_data('x' * 50_000_000)
          EM.stop
        end
      end)
    end
    assert_equal [false, true, :refused, true, [:drained, true]], events
  end

  test 'nothing is refused, and nobody is told, unless it was asked for' do
    drained = false
    run_reactor do
      received = 0
      port = serve(Module.new do
        define_method(:receive_data) { |data| EM.stop if (received += data.bytesize) == 30_000_000 }
      end)
      EM.connect('127.0.0.1', port, Module.new do
        define_method(:connection_completed) { 30.times { send_data('x' * 1_000_000) } }
        define_method(:outbound_drained) { drained = true }
      end)
    end
    assert_false drained
  end

  test 'timers are precise if asked for' do
    measure = lambda do
      times = []
      run_reactor do
        left = 20
        step = proc do
          begun = Process.clock_gettime(Process::CLOCK_MONOTONIC)
          EM.add_timer(0.0009) do
            times << (Process.clock_gettime(Process::CLOCK_MONOTONIC) - begun)
            (left -= 1).zero? ? EM.stop : step.call
          end
        end
        step.call
      end
      times
    end
    assert_operator measure.call.min, :<, 0.0009, 'rounded down to 0 ms, as in EventMachine'
    EM.precise_timers = true
    times = measure.call
    assert_operator times.min, :>=, 0.0009
    run_reactor do
      # Absurd numbers.
      [-1, 1e300, Float::INFINITY].each { |seconds| EM.cancel_timer(EM.add_timer(seconds) {}) }
      EM.stop
    end
  end

  test 'names are looked up while the loop runs, if asked for' do
    EM.happy_eyeballs = true
    events = []
    run_reactor do
      port = serve(Module.new { define_method(:receive_data) { |data| send_data(data.upcase) } })
      EM.connect('localhost', port, Module.new do
        define_method(:connection_completed) { events << Socket.unpack_sockaddr_in(get_peername).last }
        define_method(:receive_data) { |data| events << data; EM.stop }
      end) { |client| client.send_data('hello') }
      events << :returned
    end
    assert_equal [:returned, '127.0.0.1', 'HELLO'], events
    reason = :none
    run_reactor(40) do
      # Nothing is raised; the connection ends.
      EM.connect('name.invalid', 1, Module.new { define_method(:unbind) { |why| reason = why; EM.stop } })
    end
    assert_equal Errno::EHOSTUNREACH, reason
    run_reactor do
      # Both addresses refuse.
      EM.connect('localhost', closed_port, Module.new { define_method(:unbind) { |why| reason = why; EM.stop } })
    end
    assert_equal Errno::ECONNREFUSED, reason
  end

  def closed_port
    server = TCPServer.new('127.0.0.1', 0)
    server.addr[1].tap { server.close }
  end

  test 'TLS and time-outs work with a name that is looked up' do
    EM.happy_eyeballs = true
    answer = nil
    run_reactor do
      port = serve(Module.new do
        define_method(:post_init) { start_tls }
        define_method(:receive_data) { |data| send_data(data) }
      end)
      EM.connect('localhost', port, Module.new do
        define_method(:post_init) do
          self.pending_connect_timeout = 15
          start_tls
          send_data 'secret'
        end
        define_method(:receive_data) { |data| answer = data; EM.stop }
      end)
    end
    assert_equal 'secret', answer
  end

  test 'statistics count' do
    assert_raise(RuntimeError) { EM.stats }
    first = second = nil
    run_reactor do
      port = serve
      first = EM.stats
      EM.connect('127.0.0.1', port, Module.new do
        define_method(:connection_completed) do
          second = EM.stats
          EM.stop
        end
      end)
    end
    assert_equal 0, first[:connections]
    assert_operator second[:connections], :>=, 1
    assert_operator second[:passes], :>=, 1
    assert_equal 1, second[:timers]
    assert_operator second[:callbacks][:timer], :>=, 1
    assert_nil second[:pass_time]
    EM.measure_times = true
    measured = text = nil
    run_reactor do
      EM.add_timer(0.01) do
        measured = EM.stats
        text = EM.prometheus_stats
        EM.stop
      end
    end
    assert_operator measured[:pass_time][:max], :>=, measured[:pass_time][:median]
    assert_match(/^pelton_turns_total \d+/, text)
  end

  test 'the watchdog names the line that blocks the reactor' do
    reports = ::Queue.new
    line = nil
    run_reactor do
      EM.watchdog(0.05) { |slow| reports << slow }
      EM.add_timer(0.001) do
        line = __LINE__ + 1
        sleep 0.01 while reports.empty?
        EM.stop
      end
    end
    slow = reports.pop
    assert_match(/#{Regexp.escape(__FILE__)}:#{line}:/, slow.place)
    assert_equal 'timer', slow.kind
    assert_operator slow.seconds, :>=, 0.05
    assert_match(/has been blocking the reactor for 0\.\d+ s, at .*#{line}/, slow.to_s)
    # It ends with the reactor.
    deadline = Time.now + DEADLINE
    sleep 0.01 while Thread.list.size > 1 && Time.now < deadline
    assert_equal 1, Thread.list.size
  end

  test 'the watchdog interrupts a callback that computes' do
    reports = ::Queue.new
    run_reactor do
      EM.watchdog(0.05) { |slow| reports << slow }
      EM.next_tick do
        deadline = Time.now + DEADLINE
        nil while reports.empty? && Time.now < deadline
        EM.stop
      end
    end
    assert_match(/test_extras/, reports.pop.place)
  end

  test 'a watchdog that is wrong raises' do
    run_reactor do
      [0, -1, Float::NAN, Float::INFINITY].each { |seconds| assert_raise(ArgumentError) { EM.watchdog(seconds) } }
      EM.stop
    end
    assert_raise(RuntimeError) { EM.watchdog(1) }
  end
end
