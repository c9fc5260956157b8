# frozen_string_literal: true

require 'resolv'
require 'securerandom'

module EventMachine
  module DNS
    # Looks up names without blocking: first in the file of hosts, then by asking the name servers of the system.
    class Resolver
      HOSTS_FILE = '/etc/hosts'

      class << self
        # Returns a deferrable that succeeds with an array of addresses.
        def resolve(hostname)
          Request.new(socket, hostname)
        end

        # The socket that all requests share.
        def socket
          @socket = Socket.open if @socket.nil? || @socket.error?
          @socket
        end

        # One of the name servers.
        def nameserver
          nameservers.sample
        end

        def nameservers
          @nameservers ||= begin
            found = Resolv::DNS::Config.default_config_hash[:nameserver]
            found && !found.empty? ? found : ['127.0.0.1']
          end
        end

        attr_writer :nameservers

        # The file of hosts: a hash of names and arrays of addresses.
        def hosts
          @hosts ||= read_hosts
        end

        private

        def read_hosts
          lines = File.readable?(HOSTS_FILE) ? File.readlines(HOSTS_FILE) : []
          lines.each_with_object({}) do |line, hosts|
            address, *names = line.sub(/#.*/, '').split
            names.each { |name| (hosts[name] ||= []) << address }
          end
        end
      end
    end

    class RequestIdAlreadyUsed < RuntimeError; end

    # The socket for requests. Answers count only if they come from the server that was asked, with the id that was chosen at random.
    class Socket < EventMachine::Connection
      # How often unanswered requests are looked at, in seconds.
      TICK = 0.5

      def self.open
        EventMachine.open_datagram_socket('0.0.0.0', 0, self)
      end

      def initialize
        super
        @nameserver = nil
        @requests = {}
        @timer = nil
      end

      attr_writer :nameserver

      def nameserver
        @nameserver || Resolver.nameserver
      end

      def register_request(id, request)
        raise RequestIdAlreadyUsed, "id #{id}" if @requests.key?(id)

        @requests[id] = request
        @timer ||= EventMachine.add_periodic_timer(TICK) { tick }
      end

      def deregister_request(id, request)
        @requests.delete(id) if @requests[id].equal?(request)
        return unless @requests.empty?

        @timer&.cancel
        @timer = nil
      end

      # An id that no request has.
      def unused_id
        loop do
          id = SecureRandom.random_number(65_536)
          return id unless @requests.key?(id)
        end
      end

      def send_packet(packet, server)
        send_datagram(packet, server, 53)
      end

      def receive_data(data)
        message = Resolv::DNS::Message.decode(data)
        request = @requests[message.id]
        return unless request

        port, address = ::Socket.unpack_sockaddr_in(get_peername)
        request.receive_answer(message) if port == 53 && request.asked?(address)
      rescue Resolv::DNS::DecodeError, ArgumentError
        # Not an answer.
      end

      def unbind
        @timer&.cancel
        @timer = nil
        requests = @requests.values
        @requests.clear
        requests.each { |request| request.fail('the socket was closed') }
      end

      private

      def tick
        @requests.values.each(&:tick)
      end
    end

    # One look-up: a deferrable.
    class Request
      include Deferrable

      attr_accessor :retry_interval, :max_tries

      def initialize(socket, hostname)
        raise ArgumentError, "a host name must be a string, not #{hostname.inspect}" unless hostname.is_a?(String)

        @socket = socket
        @hostname = hostname
        @tries = 0
        @last_send = Time.at(0)
        @retry_interval = 3
        @max_tries = 5
        EventMachine.next_tick { begin_lookup }
      end

      # Sends the request again, or gives up.
      def tick
        return if Time.now - @last_send < @retry_interval

        if @tries >= @max_tries
          finish(:failed, 'retries exceeded')
        else
          ask
        end
      end

      # Returns whether the request was sent to this server.
      def asked?(address)
        @server == address
      end

      def receive_answer(message)
        addresses = message.answer.filter_map do |_, _, data|
          data.address.to_s if data.is_a?(Resolv::DNS::Resource::IN::A)
        end
        if addresses.empty?
          finish(:failed, "rcode=#{message.rcode}")
        else
          finish(:succeeded, addresses)
        end
      end

      private

      def begin_lookup
        known = Resolver.hosts[@hostname]
        return succeed(known) if known

        @id = @socket.unused_id
        @socket.register_request(@id, self)
        ask
      rescue StandardError => e
        finish(:failed, e.message)
      end

      def ask
        @tries += 1
        @last_send = Time.now
        @server = @socket.nameserver
        @socket.send_packet(packet, @server)
      end

      def packet
        message = Resolv::DNS::Message.new(@id)
        message.rd = 1
        message.add_question(@hostname, Resolv::DNS::Resource::IN::A)
        message.encode
      end

      def finish(status, value)
        @socket.deregister_request(@id, self) if @id
        set_deferred_status(status, value)
      end
    end
  end
end
