# frozen_string_literal: true

require_relative 'helper'
require 'tempfile'
require 'tmpdir'

# What EventMachine's own tests do not cover.
class TestSources < PeltonTest
  test 'Unix sockets, by path' do
    Dir.mktmpdir do |directory|
      path = File.join(directory, 'socket')
      received = nil
      run_reactor do
        EM.start_unix_domain_server(path, Module.new { def receive_data(data) = send_data(data.reverse) })
        EM.connect_unix_domain(path, Module.new do
          define_method(:post_init) { send_data('abc') }
          define_method(:receive_data) { |data| received = data; EM.stop }
        end)
      end
      assert_equal 'cba', received
      assert_false File.exist?(path), 'the file is removed with its server'
    end
  end

  test 'datagrams: send_data answers the sender' do
    answer = nil
    run_reactor do
      echo = EM.open_datagram_socket('127.0.0.1', 0, Module.new { def receive_data(data) = send_data(data.upcase) })
      port, host = Socket.unpack_sockaddr_in(echo.get_sockname)
      client = EM.open_datagram_socket('127.0.0.1', 0, Module.new do
        define_method(:receive_data) do |data|
          answer = [data, Socket.unpack_sockaddr_in(get_peername)]
          EM.stop
        end
      end)
      assert_equal 5, client.send_datagram('hello', host, port)
      @expected = ['HELLO', [port, host]]
    end
    assert_equal @expected, answer
  end

  test 'a process gets its input, and its status is known in unbind' do
    output = +''
    status = nil
    run_reactor do
      EM.popen(['sh', '-c', 'read line; echo "got $line"; exit 3'], Module.new do
        define_method(:post_init) { send_data("hello\n") }
        define_method(:receive_data) { |data| output << data }
        define_method(:unbind) do
          status = get_status
          EM.stop
        end
      end)
    end
    assert_equal "got hello\n", output
    assert_equal 3, status.exitstatus
  end

  test 'a process that closes its output and stays is terminated, and the reactor does not wait' do
    ticks = 0
    status = nil
    run_reactor do
      EM.add_periodic_timer(0.01) { ticks += 1 }
      EM.popen(['sh', '-c', 'exec <&- >&-; sleep 100'], Module.new do
        define_method(:unbind) do
          status = get_status
          EM.stop
        end
      end)
    end
    assert_equal Signal.list['TERM'], status.termsig
    assert_operator ticks, :>, 10
  end

  test 'no child is left behind when the reactor stops' do
    run_reactor { EM.popen('cat') { |process| @pid = process.get_pid; EM.next_tick { EM.stop } } }
    deadline = Time.now + DEADLINE
    loop do
      Process.kill(0, @pid)
      flunk 'the child is still there' if Time.now > deadline
      sleep 0.005
    rescue Errno::ESRCH
      break
    end
  end

  test 'the exit of a process is watched' do
    seen = []
    pid = spawn('sleep 0.05')
    run_reactor do
      EM.watch_process(pid, Module.new do
        define_method(:process_exited) { seen << :exited }
        define_method(:unbind) { seen << :unbound; EM.stop }
      end)
    end
    assert_equal %i[exited unbound], seen
  ensure
    Process.wait(pid)
  end

  test 'a file is watched until it is deleted' do
    file = Tempfile.new('watched')
    seen = []
    run_reactor do
      EM.watch_file(file.path, Module.new do
        define_method(:file_modified) { seen << :modified; File.unlink(path) }
        define_method(:file_deleted) { seen << :deleted }
        define_method(:unbind) { seen << :unbound; EM.stop }
      end)
      EM.add_timer(0.01) { File.write(file.path, 'x') }
    end
    assert_equal %i[modified deleted unbound], seen.uniq
  end

  test 'sockets of servers and clients have names' do
    run_reactor do
      port = serve { |server| assert_equal '127.0.0.1', Socket.unpack_sockaddr_in(server.get_peername).last; EM.stop }
      EM.connect('127.0.0.1', port)
    end
  end

  test 'a detached connection goes on without the reactor' do
    io = nil
    peer = nil
    run_reactor do
      port = serve(Module.new do
        define_method(:receive_data) do |_|
          io = Socket.for_fd(detach)
          EM.next_tick { EM.stop }
        end
      end)
      peer = TCPSocket.new('127.0.0.1', port)
      peer.write('x')
    end
    io.write('still open')
    io.close
    assert_equal 'still open', peer.read
  ensure
    peer&.close
  end

  test 'a server that is stopped accepts no more' do
    run_reactor do
      server = EM.start_server('127.0.0.1', 0)
      port = port_of(server)
      EM.stop_server(server)
      assert_raise(Errno::ECONNREFUSED) { TCPSocket.new('127.0.0.1', port) }
      EM.stop
    end
  end

  test 'ten thousand connections on the default poller' do
    # Each has two descriptors in this process.
    limit = Process.getrlimit(:NOFILE).last
    count = [10_000, (limit / 2) - 200].min
    omit("the limit of descriptors is #{limit}") if count < 1000
    EM.set_descriptor_table_size((count * 2) + 200)
    accepted = 0
    run_reactor(120) do
      port = serve { |_| EM.stop if (accepted += 1) == count }
      opened = 0
      # In pieces, so that the backlog is long enough.
      more = proc do
        [200, count - opened].min.times { EM.connect('127.0.0.1', port); opened += 1 }
        EM.add_timer(0.001, more) if opened < count
      end
      more.call
    end
    assert_equal count, accepted
  end

  test 'a file of any size is streamed' do
    file = Tempfile.new('streamed')
    file.write('x' * (3 << 20))
    file.close
    received = 0
    run_reactor do
      port = serve(Module.new do
        define_method(:post_init) { stream_file_data(file.path).callback { close_connection_after_writing } }
      end)
      EM.connect('127.0.0.1', port, Module.new do
        define_method(:receive_data) { |data| received += data.bytesize }
        define_method(:unbind) { EM.stop }
      end)
    end
    assert_equal 3 << 20, received
  end

  test 'a proxy with a bound reads no faster than its target' do
    total = 8 << 20
    received = 0
    most = 0
    run_reactor do
      source = serve(Module.new { define_method(:post_init) { send_data('x' * total); close_connection_after_writing } })
      front = serve do |client|
        EM.connect('127.0.0.1', source, Module.new do
          define_method(:post_init) do
            proxy_incoming_to(client, 100_000)
            EM.add_periodic_timer(0.001) { most = [most, client.get_outbound_data_size].max }
          end
          define_method(:unbind) { client.close_connection_after_writing }
        end)
      end
      reader = EM.connect('127.0.0.1', front, Module.new do
        define_method(:receive_data) { |data| received += data.bytesize }
        define_method(:unbind) { EM.stop }
      end)
      reader.pause
      EM.add_timer(0.1) { reader.resume }
    end
    assert_equal total, received
    assert_operator most, :<, 1 << 20
  end

  test 'a target has one proxy, and a proxy has an open target' do
    run_reactor do
      port = serve
      first, second, target = Array.new(3) { EM.connect('127.0.0.1', port) }
      EM.enable_proxy(first, target)
      assert_raise(EM::ConnectionError) { EM.enable_proxy(second, target) }
      assert_raise(EM::ConnectionError) { EM.enable_proxy(second, second) }
      EM.disable_proxy(first)
      EM.enable_proxy(second, target)
      EM.stop
    end
  end
end
