# frozen_string_literal: true

module EventMachine
  module Protocols
    # Receives mail. Subclasses define what they want to know or refuse; a method that returns false refuses.
    class SmtpServer < Connection
      include EventMachine::Protocols::LineText2

      # How many lines of a mail are collected before `receive_data_chunk` gets them.
      CHUNK = 4000
      LONGEST_LINE = 64 * 1024

      class << self
        # Options for all connections: `auth: true`, `starttls: true`, `chunksize: lines`, `verbose: true`.
        def parms=(parms)
          @parms = (@parms || {}).merge(parms)
        end

        def parms
          @parms ||= {}
        end
      end

      def initialize(*)
        super
        @parms = SmtpServer.parms.merge(self.class.parms)
        @authenticated = false
        @tls = false
        reset_transaction
        @greeted = false
      end

      attr_reader :parms

      def parms=(parms)
        @parms = @parms.merge(parms)
      end

      def post_init
        EventMachine.next_tick { send_server_greeting }
      end

      def receive_line(line)
        warn ">>> #{line}" if @parms[:verbose]
        return answer(500, 'line too long') if line.bytesize > LONGEST_LINE

        @collecting ? receive_mail_line(line) : receive_command(line)
      end

      def unbind
        super
        connection_ended
      end

      # What subclasses define.

      def get_server_greeting = 'EventMachine SMTP Server'

      def get_server_domain = 'localhost'

      def receive_ehlo_domain(_domain) = true

      def receive_plain_auth(_user, _password) = true

      def receive_sender(_sender) = true

      def receive_recipient(_recipient) = true

      def receive_data_command = true

      def receive_data_chunk(_lines); end

      def receive_message = true

      def receive_transaction; end

      def receive_reset; end

      def connection_ended; end

      private

      def send_server_greeting
        answer(220, get_server_greeting)
      end

      def answer(code, text)
        warn "<<< #{code} #{text}" if @parms[:verbose]
        send_data("#{code} #{text}\r\n")
      end

      def reset_transaction
        @sender = nil
        @recipients = []
        @collecting = false
        @lines = []
      end

      def receive_command(line)
        case line
        when /\AEHLO(?:\s+(.*))?\z/i then ehlo(Regexp.last_match(1).to_s.strip)
        when /\AHELO(?:\s+(.*))?\z/i then helo(Regexp.last_match(1).to_s.strip)
        when /\AMAIL FROM:\s*(.*)\z/i then mail_from(Regexp.last_match(1).strip)
        when /\ARCPT TO:\s*(.*)\z/i then rcpt_to(Regexp.last_match(1).strip)
        when /\ADATA\s*\z/i then data
        when /\AAUTH PLAIN\s+(.+)\z/i then auth(Regexp.last_match(1))
        when /\ASTARTTLS\s*\z/i then starttls
        when /\ARSET\s*\z/i then rset
        when /\ANOOP/i then answer(250, 'ok')
        when /\AQUIT\s*\z/i then quit
        when /\A(EXPN|VRFY|HELP)/i then answer(502, 'not implemented')
        else answer(500, 'command not recognized')
        end
      end

      def ehlo(domain)
        return answer(550, 'domain refused') unless receive_ehlo_domain(domain)

        @greeted = true
        reset_transaction
        extensions = [get_server_domain, '8BITMIME']
        extensions << 'STARTTLS' if @parms[:starttls] && !@tls
        extensions << 'AUTH PLAIN' if @parms[:auth]
        last = extensions.pop
        extensions.each { |extension| send_data("250-#{extension}\r\n") }
        answer(250, last)
      end

      def helo(domain)
        return answer(550, 'domain refused') unless receive_ehlo_domain(domain)

        @greeted = true
        reset_transaction
        answer(250, get_server_domain)
      end

      def auth(encoded)
        return answer(502, 'not implemented') unless @parms[:auth]

        _, user, password = encoded.unpack1('m').split("\0", 3)
        @authenticated = receive_plain_auth(user, password)
        @authenticated ? answer(235, 'authentication successful') : answer(535, 'authentication failed')
      end

      def starttls
        return answer(502, 'not implemented') unless @parms[:starttls] && !@tls

        answer(220, 'start TLS')
        start_tls(@parms[:starttls_options] || {})
        @tls = true
        @greeted = false
        reset_transaction
      end

      # The address, which may be followed by parameters.
      def address(text)
        text[/\A<[^>]*>/] || text[/\A\S+/].to_s
      end

      def mail_from(text)
        return answer(503, 'say EHLO first') unless @greeted
        return answer(550, 'authentication required') if @parms[:auth] == :required && !@authenticated
        return answer(503, 'MAIL was given already') if @sender

        sender = address(text)
        return answer(550, 'sender is unacceptable') unless receive_sender(sender)

        @sender = sender
        answer(250, 'ok')
      end

      def rcpt_to(text)
        return answer(503, 'MAIL is required before RCPT') unless @sender

        recipient = address(text)
        return answer(550, 'recipient is unacceptable') unless receive_recipient(recipient)

        @recipients << recipient
        answer(250, 'ok')
      end

      def data
        return answer(503, 'RCPT is required before DATA') if @recipients.empty?

        proceed = proc do
          @collecting = true
          answer(354, 'send the mail, end it with a dot')
        end
        wanted = receive_data_command
        return answer(550, 'operation failed') unless wanted
        return proceed.call unless wanted.respond_to?(:set_deferred_status)

        wanted.callback(&proceed)
        wanted.errback { answer(550, 'operation failed') }
      end

      def receive_mail_line(line)
        return end_mail if line == '.'

        @lines << line.delete_prefix('.')
        return if @lines.size < (@parms[:chunksize] || CHUNK)

        receive_data_chunk(@lines)
        @lines = []
      end

      def end_mail
        receive_data_chunk(@lines) unless @lines.empty?
        reset_transaction
        settle(receive_message)
      end

      # The answer may come later.
      def settle(taken)
        if taken.respond_to?(:set_deferred_status)
          taken.callback { answer(250, 'message accepted') }
          taken.errback { answer(550, 'message rejected') }
        else
          taken ? answer(250, 'message accepted') : answer(550, 'message rejected')
        end
        receive_transaction
      end

      def rset
        reset_transaction
        receive_reset
        answer(250, 'ok')
      end

      def quit
        answer(221, 'ok')
        close_connection_after_writing
      end
    end
  end
end
