# EventMachine on epoll: one process, one thread, echoes all input.
require 'eventmachine'
require 'socket'

module Echo
  def post_init
    set_sock_opt(Socket::IPPROTO_TCP, Socket::TCP_NODELAY, 1)
  end

  def receive_data(bytes)
    send_data(bytes)
  end
end

# The parent has exited.
module Parent
  def unbind
    EventMachine.stop
  end
end

EventMachine.epoll
EventMachine.set_descriptor_table_size(20_000)
EventMachine.run do
  server = EventMachine.start_server('127.0.0.1', 0, Echo)
  puts Socket.unpack_sockaddr_in(EventMachine.get_sockname(server)).first
  $stdout.flush
  EventMachine.attach($stdin, Parent)
end
